# The GPU machine. Its host part always goes into the library. The device image, every vm/gpu/*.cu compiled for sm_90a, is
# embedded when the CUDA toolkit is there; else an empty one, with which the program says that it was built without.
option(MK_DEVICE "Embed the device image when nvcc (CUDA toolkit) is found" ON)
find_program(MK_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
file(GLOB MK_GPU_SOURCES CONFIGURE_DEPENDS vm/gpu/*.c)
set(MK_IMAGE_PARTS kernel fill bandwidth)
set(MK_IMAGE_CUDA_VERSION 0)
set(MK_IMAGE_ASSEMBLY)
set(device_objects)

if(NOT MK_DEVICE OR NOT MK_NVCC)
  message(STATUS "No nvcc (CUDA toolkit), or MK_DEVICE is OFF: the device image is left out")
else()
  execute_process(COMMAND ${MK_NVCC} --version OUTPUT_VARIABLE nvcc_version)
  if(NOT nvcc_version MATCHES "release ([0-9]+)\\.([0-9]+)")
    message(FATAL_ERROR "${MK_NVCC} --version tells no release; point CUDACXX at an nvcc, or set MK_DEVICE=OFF")
  endif()
  math(EXPR MK_IMAGE_CUDA_VERSION "${CMAKE_MATCH_1} * 1000 + ${CMAKE_MATCH_2} * 10")
  message(STATUS "Device image: compiled by ${MK_NVCC} ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
  set(device_flags -std=c++20 -O3 -lineinfo -gencode arch=compute_90a,code=sm_90a -I${PROJECT_SOURCE_DIR}
      -I${PROJECT_BINARY_DIR} -Xptxas -v,--warn-on-spills)
  if(MK_WERROR)
    list(APPEND device_flags -Werror all-warnings)
  endif()
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/device)
  foreach(name ${MK_IMAGE_PARTS})
    set(source ${PROJECT_SOURCE_DIR}/vm/gpu/${name}.cu)
    set(object ${PROJECT_BINARY_DIR}/device/${name}.cubin)
    add_custom_command(OUTPUT ${object}
      COMMAND ${MK_NVCC} ${device_flags} -MD -MF ${object}.d -MT ${object} -cubin -o ${object} ${source}
      DEPENDS ${source} DEPFILE ${object}.d
      COMMENT "Compiling device code ${name}.cu for sm_90a" VERBATIM)
    list(APPEND device_objects ${object})
  endforeach()
  add_custom_target(mk_device DEPENDS ${device_objects})
  add_dependencies(mk_device mk_version)
endif()

foreach(name ${MK_IMAGE_PARTS})
  set(content "    \".Lmk_image_${name}_end:\\n\"\n")
  if(device_objects)
    string(PREPEND content "    \".incbin \\\"${PROJECT_BINARY_DIR}/device/${name}.cubin\\\"\\n\"\n")
  endif()
  string(APPEND MK_IMAGE_ASSEMBLY "    \".balign 64\\n.global mk_image_${name}\\nmk_image_${name}:\\n\"\n" "${content}"
         "    \".balign 8\\n.global mk_image_${name}_bytes\\nmk_image_${name}_bytes:\\n\"\n"
         "    \".quad .Lmk_image_${name}_end - mk_image_${name}\\n\"\n")
endforeach()
configure_file(cmake/device_image.c.in ${PROJECT_BINARY_DIR}/device_image.c @ONLY)
set_source_files_properties(${PROJECT_BINARY_DIR}/device_image.c PROPERTIES OBJECT_DEPENDS "${device_objects}")
target_sources(mk PRIVATE ${MK_GPU_SOURCES} ${PROJECT_BINARY_DIR}/device_image.c)
target_link_libraries(mk PUBLIC ${CMAKE_DL_LIBS})

# Tests of the GPU machine: a program that can be carried to a machine with a GPU. Without one it says so and exits with 77.
add_executable(mkvm_gpu_tests ${PROJECT_SOURCE_DIR}/tests/gpu/run_gpu.c)
target_link_libraries(mkvm_gpu_tests PRIVATE mk)
# tools/package puts the libraries that are not part of every system there.
set_target_properties(mkvm_gpu_tests PROPERTIES BUILD_RPATH "\$ORIGIN/../lib")
if(TARGET mkvm)
  set_target_properties(mkvm PROPERTIES BUILD_RPATH "\$ORIGIN/../lib")
endif()
