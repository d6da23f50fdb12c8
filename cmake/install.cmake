# cmake --install BUILD --prefix TREE: a tree that can be put anywhere, and copied to any x86-64 Linux machine whose C library is not
# older than this one's. It carries every other shared library that its programs need; the NVIDIA driver is opened at run time.
file(RELATIVE_PATH MK_LIBRARIES_FROM_BIN ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/mkvm)
set(MK_PROGRAMS mkvm mkvm_gpu_tests)
# DT_RPATH and not DT_RUNPATH: it also serves the libraries that the libraries need.
foreach(program ${MK_PROGRAMS})
  target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
endforeach()
set_target_properties(${MK_PROGRAMS} PROPERTIES INSTALL_RPATH "\$ORIGIN/${MK_LIBRARIES_FROM_BIN}")
install(TARGETS ${MK_PROGRAMS} RUNTIME_DEPENDENCY_SET mk_libraries RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(RUNTIME_DEPENDENCY_SET mk_libraries
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|pthread|rt|resolv|util|gcc_s)\\.so"
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/mkvm)

# The licences of what is carried, where the packages of the libraries are Debian's.
foreach(package libjansson4 libpcre2-8-0 libutf8proc2 zlib1g libedit2 libbsd0 libmd0 libtinfo6)
  install(FILES /usr/share/doc/${package}/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR}/libraries RENAME ${package} OPTIONAL)
endforeach()

file(GLOB MK_DOCUMENTS CONFIGURE_DEPENDS README.md CHANGELOG.md LICENSE docs/*.md)
install(FILES ${MK_DOCUMENTS} DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/pictures DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY models/demo DESTINATION ${CMAKE_INSTALL_DATADIR}/mkvm/models PATTERN *.py EXCLUDE)
install(DIRECTORY tests/vm/data/ DESTINATION ${CMAKE_INSTALL_DATADIR}/mkvm/programs FILES_MATCHING PATTERN *.mks)
install(DIRECTORY tests/oracle/goldens DESTINATION ${CMAKE_INSTALL_DATADIR}/mkvm FILES_MATCHING PATTERN *.bin)

if(NOT MK_SANITIZE)
  add_test(NAME install.tree COMMAND ${PROJECT_SOURCE_DIR}/tests/install/check_tree.sh ${CMAKE_COMMAND} ${PROJECT_BINARY_DIR})
  set_tests_properties(install.tree PROPERTIES TIMEOUT ${MK_TEST_SECONDS})
endif()
