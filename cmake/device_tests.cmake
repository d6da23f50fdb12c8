# Tests of the tile library: kernels embedded in mkvm_gpu_tests alone, and what the compiler must refuse.
if(NOT device_objects)
  message(STATUS "No device image: tests of the tile library (kernels, misuse) are left out")
  return()
endif()

file(GLOB tile_sources CONFIGURE_DEPENDS tests/gpu/tile/*.cu)
set(tile_objects)
foreach(source ${tile_sources})
  mk_compile_device(tests/tile ${source} tile_objects)
endforeach()
add_custom_target(mk_tile_images DEPENDS ${tile_objects})
add_dependencies(mkvm_gpu_tests mk_tile_images)
target_compile_definitions(mkvm_gpu_tests PRIVATE MK_TILE_IMAGES="${PROJECT_BINARY_DIR}/tests/tile")
set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/gpu/tile_gpu.c PROPERTIES OBJECT_DEPENDS "${tile_objects}")

# tests/gpu/refused/NAME.cu: what must not compile, and why.
file(GLOB refused_sources CONFIGURE_DEPENDS tests/gpu/refused/*.cu)
foreach(source ${refused_sources})
  get_filename_component(name ${source} NAME_WE)
  add_test(NAME gpu.refused.${name}
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${source} -DOBJECT=${PROJECT_BINARY_DIR}/tests/refused_${name}.cubin
            -DCHECK=${PROJECT_SOURCE_DIR}/cmake/compile_device.cmake
            -P ${PROJECT_SOURCE_DIR}/tests/gpu/refused/run.cmake -- ${MK_NVCC} ${device_flags})
  set_tests_properties(gpu.refused.${name} PROPERTIES TIMEOUT ${MK_TEST_SECONDS})
endforeach()

# A build for looking into it compiles.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/tests/debug)
add_test(NAME gpu.debug COMMAND ${MK_NVCC} ${device_debug_flags} -cubin -o ${PROJECT_BINARY_DIR}/tests/debug/say.cubin
         ${PROJECT_SOURCE_DIR}/tests/gpu/debug/say.cu)
set_tests_properties(gpu.debug PROPERTIES TIMEOUT ${MK_TEST_SECONDS})
