# Run as a script: cmake -DOBJECT=FILE -DDEBUG=OFF -P compile_device.cmake -- COMMAND...
# Runs the compiler of device code, which must print what ptxas -v says, and fails, leaving no OBJECT, when ptxas tells
# of a stack frame, of spilled registers, or that it has put wgmma into a row or set setmaxnreg aside (C7508, C7510,
# C7515): nvcc takes some of these for remarks, but each of them costs more speed than any tuning gains. With DEBUG
# speed does not matter, and nothing is checked.
include(${CMAKE_CURRENT_LIST_DIR}/command.cmake)

execute_process(COMMAND ${command} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(NOT result EQUAL 0)
  file(REMOVE "${OBJECT}")
  message(FATAL_ERROR "${OBJECT}: the compiler of device code fails (${result})")
endif()
if(DEBUG)
  return()
endif()
if(NOT output MATCHES "bytes stack frame")
  file(REMOVE "${OBJECT}")
  message(FATAL_ERROR "${OBJECT}: nothing was told about stack frames; compile with -Xptxas -v")
endif()
string(REPLACE ";" "," output "${output}")
set(lost "[1-9][0-9]* bytes (stack frame|cumulative stack size|spill stores|spill loads)|C7508|C7510|C7515")
string(REGEX MATCHALL "[^\n]*(${lost})[^\n]*" faults "${output}")
if(faults)
  file(REMOVE "${OBJECT}")
  list(JOIN faults "\n" faults)
  message(FATAL_ERROR "${OBJECT}: device code may neither spill registers, nor use a stack frame, "
                      "nor lose wgmma or setmaxnreg:\n"
                      "${faults}")
endif()
