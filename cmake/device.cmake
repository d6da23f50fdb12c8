# The GPU machine. Its host part always goes into the library. The device image, every vm/gpu/*.cu compiled for sm_90a,
# is embedded when the CUDA toolkit is there; else an empty one, with which the program says that it was built without.
option(MK_DEVICE "Embed the device image when nvcc (CUDA toolkit) is found" ON)
option(MK_DEVICE_DEBUG "Device code for cuda-gdb and MK_SAY (docs/DEBUGGING.md): unoptimised, slow" OFF)
find_program(MK_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
file(GLOB MK_GPU_SOURCES CONFIGURE_DEPENDS vm/gpu/*.c)
set(MK_IMAGE_PARTS kernel recording sampling sampling_recording rows rows_recording
    wide wide_recording wide_slots wide_slots_recording rows_sampling rows_sampling_recording
    families families_recording families_sampling families_sampling_recording rows_families rows_families_recording
    rows_families_sampling rows_families_sampling_recording
    quantised quantised_recording quantised_sampling quantised_sampling_recording
    rows_quantised rows_quantised_recording rows_quantised_sampling rows_quantised_sampling_recording
    wide_families wide_families_recording wide_slots_families wide_slots_families_recording
    wide_slots_families_sampling wide_slots_families_sampling_recording
    wide_quantised wide_quantised_recording wide_slots_quantised wide_slots_quantised_recording
    wide_slots_quantised_sampling wide_slots_quantised_sampling_recording
    ranks ranks_families ranks_quantised ranks_sampling ranks_families_sampling ranks_quantised_sampling
    ranks_recording rows_ranks_recording wide_ranks_recording wide_slots_ranks_recording
    rows_ranks rows_ranks_families rows_ranks_quantised
    rows_ranks_sampling rows_ranks_families_sampling rows_ranks_quantised_sampling
    wide_ranks wide_slots_ranks wide_ranks_families wide_slots_ranks_families wide_ranks_quantised
    wide_slots_ranks_quantised
    wide_slots_sampling wide_slots_sampling_recording mla fill bandwidth pack rank)
set(MK_IMAGE_CUDA_VERSION 0)
set(MK_IMAGE_ASSEMBLY)
set(MK_IMAGE_EXTERNS)
set(MK_IMAGE_CASES)
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
  set(device_flags -std=c++20 -gencode arch=compute_90a,code=sm_90a -I${PROJECT_SOURCE_DIR} -I${PROJECT_BINARY_DIR}
      -Xptxas -v)
  set(device_debug_flags ${device_flags} -G -DMK_GPU_DEBUG=true)
  if(MK_DEVICE_DEBUG)
    set(device_flags ${device_debug_flags})
  else()
    list(APPEND device_flags -O3 -lineinfo -Xptxas --warn-on-spills)
    if(MK_WERROR)
      list(APPEND device_flags -Werror all-warnings)
    endif()
  endif()
  # A cubin of one source, in <build>/<folder>; it fails where the code spills, and the like (compile_device.cmake).
  function(mk_compile_device folder source objects)
    get_filename_component(name ${source} NAME_WE)
    set(object ${PROJECT_BINARY_DIR}/${folder}/${name}.cubin)
    set(check ${PROJECT_SOURCE_DIR}/cmake/compile_device.cmake)
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/${folder})
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -DOBJECT=${object} -DDEBUG=${MK_DEVICE_DEBUG} -P ${check} --
              ${MK_NVCC} ${device_flags} -MD -MF ${object}.d -MT ${object} -cubin -o ${object} ${source}
      DEPENDS ${source} ${check} DEPFILE ${object}.d
      COMMENT "Compiling device code ${folder}/${name}.cu for sm_90a" VERBATIM)
    set(${objects} ${${objects}} ${object} PARENT_SCOPE)
  endfunction()
  foreach(name ${MK_IMAGE_PARTS})
    mk_compile_device(device ${PROJECT_SOURCE_DIR}/vm/gpu/${name}.cu device_objects)
  endforeach()
  add_custom_target(mk_device DEPENDS ${device_objects})
  add_dependencies(mk_device mk_version)
endif()

foreach(name ${MK_IMAGE_PARTS})
  set(content "    \".Lmk_image_${name}_end:\\n\"\n")
  if(device_objects)
    string(PREPEND content "    \".incbin \\\"${PROJECT_BINARY_DIR}/device/${name}.cubin\\\"\\n\"\n")
  endif()
  string(APPEND MK_IMAGE_ASSEMBLY
         "    \".balign 64\\n.global mk_image_${name}\\n.hidden mk_image_${name}\\nmk_image_${name}:\\n\"\n"
         "${content}"
         "    \".balign 8\\n.global mk_image_${name}_bytes\\n.hidden mk_image_${name}_bytes\\n\"\n"
         "    \"mk_image_${name}_bytes:\\n\"\n"
         "    \".quad .Lmk_image_${name}_end - mk_image_${name}\\n\"\n")
  string(APPEND MK_IMAGE_EXTERNS
         "extern const unsigned char mk_image_${name}[];\nextern const uint64_t mk_image_${name}_bytes;\n")
  string(TOUPPER ${name} upper)
  string(APPEND MK_IMAGE_CASES "    case MK_GPU_IMAGE_${upper}:\n"
         "      return mk_image_${name}_bytes != 0 ? mk_image_${name} : NULL;\n")
endforeach()
configure_file(cmake/device_image.c.in ${PROJECT_BINARY_DIR}/device_image.c @ONLY)
set_source_files_properties(${PROJECT_BINARY_DIR}/device_image.c PROPERTIES OBJECT_DEPENDS "${device_objects}")
target_sources(mk_core PRIVATE ${MK_GPU_SOURCES} ${PROJECT_BINARY_DIR}/device_image.c)
target_link_libraries(mk_core PUBLIC ${CMAKE_DL_LIBS})

# Tests of the GPU machine: a program that can be carried to a machine with a GPU. Without one it says so and exits
# with 77.
file(GLOB MK_GPU_TEST_SOURCES CONFIGURE_DEPENDS tests/gpu/*.c)
add_executable(mkvm_gpu_tests ${MK_GPU_TEST_SOURCES} ${PROJECT_SOURCE_DIR}/tests/support/raw_model.c
               ${PROJECT_SOURCE_DIR}/tests/support/golden_file.c ${PROJECT_SOURCE_DIR}/tests/support/beside.c
               ${PROJECT_SOURCE_DIR}/tests/support/mixture.c)
target_link_libraries(mkvm_gpu_tests PRIVATE mk)
