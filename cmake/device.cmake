# The device image: every vm/gpu/*.cu, compiled for sm_90a. Without the CUDA toolkit it is left out, and said so; host code
# never needs it.
find_program(MK_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
file(GLOB MK_DEVICE_SOURCES CONFIGURE_DEPENDS vm/gpu/*.cu)

if(NOT MK_NVCC)
  message(STATUS "No nvcc (CUDA toolkit): the device image is left out")
elseif(NOT MK_DEVICE_SOURCES)
  message(STATUS "No device code yet: there is no device image")
else()
  message(STATUS "Device image: compiled by ${MK_NVCC}")
  set(device_flags -std=c++20 -O3 -lineinfo -gencode arch=compute_90a,code=sm_90a -I${PROJECT_SOURCE_DIR}
      -I${PROJECT_BINARY_DIR})
  if(MK_WERROR)
    list(APPEND device_flags -Werror all-warnings)
  endif()
  set(device_objects)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/device)
  foreach(source ${MK_DEVICE_SOURCES})
    get_filename_component(name ${source} NAME_WE)
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
