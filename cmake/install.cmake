# What is installed, in components; cmake --install BUILD --prefix TREE takes them all.
#   mkvm         the command, the demo model, documents
#   libmkvm      libmkvm.so
#   libmkvm-dev  header, archive, pkg-config's and CMake's files, the examples
#   carried      other shared libraries, for a TREE that is put anywhere, and copied to any x86-64 Linux machine whose
#                C library is not older than this one's (the NVIDIA driver is opened at run time); Debian's packages
#                name theirs instead
#   gpu-tests    the tests of the GPU machine, and their goldens
set(MK_CARRIED ${CMAKE_INSTALL_LIBDIR}/mkvm)
file(RELATIVE_PATH MK_CARRIED_FROM_BIN /${CMAKE_INSTALL_BINDIR} /${MK_CARRIED})
# DT_RPATH and not DT_RUNPATH: it also serves the libraries that the libraries need.
foreach(target mkvm mkvm_gpu_tests mkvm_shared)
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
endforeach()
set_target_properties(mkvm mkvm_gpu_tests PROPERTIES INSTALL_RPATH "\$ORIGIN/${MK_CARRIED_FROM_BIN}")
set_target_properties(mkvm_shared PROPERTIES INSTALL_RPATH "\$ORIGIN/mkvm")

install(TARGETS mkvm RUNTIME_DEPENDENCY_SET mk_libraries RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT mkvm)
install(TARGETS mkvm_gpu_tests RUNTIME_DEPENDENCY_SET mk_libraries RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
        COMPONENT gpu-tests)
install(RUNTIME_DEPENDENCY_SET mk_libraries
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|pthread|rt|resolv|util|gcc_s)\\.so"
  LIBRARY DESTINATION ${MK_CARRIED} COMPONENT carried)
# The licences of what is carried, where the packages of the libraries are Debian's.
foreach(package libjansson4 libpcre2-8-0 libutf8proc2 zlib1g libedit2 libevent-core-2.1-7 libevent-extra-2.1-7 libbsd0
        libmd0 libtinfo6)
  install(FILES /usr/share/doc/${package}/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR}/libraries RENAME ${package}
          COMPONENT carried OPTIONAL)
endforeach()

install(TARGETS mkvm_shared EXPORT mkvm-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT libmkvm NAMELINK_COMPONENT libmkvm-dev)
install(TARGETS mkvm_static EXPORT mkvm-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT libmkvm-dev)
install(FILES include/mkvm.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT libmkvm-dev)
install(FILES examples/generate.c examples/serve.c examples/CMakeLists.txt
        DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/libmkvm-dev/examples COMPONENT libmkvm-dev)

# find_package(mkvm): mkvm::mkvm and mkvm::static.
include(CMakePackageConfigHelpers)
set(MK_CONFIG ${CMAKE_INSTALL_LIBDIR}/cmake/mkvm)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mkvm-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT mkvm-targets NAMESPACE mkvm:: FILE mkvm-config.cmake DESTINATION ${MK_CONFIG} COMPONENT libmkvm-dev)
install(FILES ${PROJECT_BINARY_DIR}/mkvm-config-version.cmake DESTINATION ${MK_CONFIG} COMPONENT libmkvm-dev)

# pkg-config mkvm: from where it lies, so that a tree can be moved.
file(RELATIVE_PATH MK_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" MK_PREFIX_FROM_PC ${MK_PREFIX_FROM_PC})
configure_file(cmake/mkvm.pc.in ${PROJECT_BINARY_DIR}/mkvm.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/mkvm.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT libmkvm-dev)

# Each package says under which licence it is.
foreach(component mkvm libmkvm libmkvm-dev)
  string(REGEX REPLACE "^libmkvm$" libmkvm${PROJECT_VERSION_MAJOR} name ${component})
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${name} RENAME copyright COMPONENT ${component})
endforeach()
file(GLOB MK_DOCUMENTS CONFIGURE_DEPENDS README.md CHANGELOG.md LICENSE docs/*.md)
install(FILES ${MK_DOCUMENTS} DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT mkvm)
install(DIRECTORY docs/pictures docs/pipelines docs/results DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT mkvm)
install(DIRECTORY models/demo DESTINATION ${CMAKE_INSTALL_DATADIR}/mkvm/models COMPONENT mkvm PATTERN *.py EXCLUDE)
install(DIRECTORY tests/vm/data/ DESTINATION ${CMAKE_INSTALL_DATADIR}/mkvm/programs COMPONENT mkvm
        FILES_MATCHING PATTERN *.mks)
install(DIRECTORY tests/oracle/goldens DESTINATION ${CMAKE_INSTALL_DATADIR}/mkvm COMPONENT gpu-tests
        FILES_MATCHING PATTERN *.bin PATTERN bf16_errors.txt)

if(NOT MK_SANITIZE)
  add_test(NAME install.tree
    COMMAND ${PROJECT_SOURCE_DIR}/tests/install/check_tree.sh ${CMAKE_COMMAND} ${PROJECT_BINARY_DIR})
  set_tests_properties(install.tree PROPERTIES TIMEOUT ${MK_TEST_SECONDS})
endif()
