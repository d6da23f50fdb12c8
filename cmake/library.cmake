# libmkvm.so and libmkvm.a, both of the objects that command and tests have: include/mkvm.h is all that can be seen of
# them. A program that uses the build folder links mkvm_shared or mkvm_static; an installed one mkvm::mkvm or
# mkvm::static (cmake/install.cmake).
add_library(mkvm_shared SHARED)
target_link_libraries(mkvm_shared PRIVATE mk_core)
set_target_properties(mkvm_shared PROPERTIES OUTPUT_NAME mkvm EXPORT_NAME mkvm VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR} LINKER_LANGUAGE C)
if(NOT MK_SANITIZE)
  target_link_options(mkvm_shared PRIVATE -Wl,--no-undefined)
endif()

# Whoever links the archive links what it needs by name: nothing has to be found first.
add_library(mkvm_static STATIC $<TARGET_OBJECTS:mk_core>)
set(MK_LIBRARY_NAMES ${JANSSON_LIBRARIES} ${PCRE2_LIBRARIES} ${UTF8PROC_LIBRARIES} ${ZLIB_LIBRARIES} m pthread
    ${CMAKE_DL_LIBS})
target_link_libraries(mkvm_static INTERFACE ${MK_LIBRARY_NAMES})
set_target_properties(mkvm_static PROPERTIES OUTPUT_NAME mkvm EXPORT_NAME static LINKER_LANGUAGE C)

foreach(target mkvm_shared mkvm_static)
  target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
