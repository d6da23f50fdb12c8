# One test program per file; ctest names it by its path: tests/models/test_config.c -> models.config
enable_testing()

# Limits are for what hangs, not for what is slow: on a machine that is slow or has other work every test takes many
# times as long as on another. No test states a number of its own. A Criterion test ends first, by name; then its
# program. Both are so short that tools/test tells of one that hangs, and of everything else, in an hour and a half.
set(MK_HANG_SECONDS 900)
math(EXPR MK_TEST_SECONDS "3 * ${MK_HANG_SECONDS} / 2")

if(MK_TESTS)
  pkg_check_modules(CRITERION REQUIRED IMPORTED_TARGET criterion)
else()
  pkg_check_modules(CRITERION QUIET IMPORTED_TARGET criterion)
endif()
if(NOT CRITERION_FOUND)
  message(STATUS "No Criterion: the tests are left out")
  return()
endif()

# A CUDA driver without a GPU, by the name that mkvm looks for.
add_library(mk_fake_cuda SHARED tests/fake_cuda/fake_cuda.c)
target_include_directories(mk_fake_cuda PRIVATE ${PROJECT_SOURCE_DIR})
set_target_properties(mk_fake_cuda PROPERTIES OUTPUT_NAME cuda SOVERSION 1
                      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fake_cuda)

# NCCL without GPUs, likewise: of the first version that is taken, and of one that tells where peers' memory is.
foreach(version 28 29)
  add_library(mk_fake_nccl_${version} SHARED tests/fake_nccl/fake_nccl.c)
  target_include_directories(mk_fake_nccl_${version} PRIVATE ${PROJECT_SOURCE_DIR})
  set_target_properties(mk_fake_nccl_${version} PROPERTIES OUTPUT_NAME nccl SOVERSION 2
                        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fake_nccl_${version})
endforeach()
target_compile_definitions(mk_fake_nccl_29 PRIVATE FAKE_NCCL_TELLS_PEERS)

# Helpers that several test programs share.
file(GLOB MK_TEST_SUPPORT CONFIGURE_DEPENDS tests/support/*.c tests/mutation/*.c)
list(REMOVE_ITEM MK_TEST_SUPPORT ${PROJECT_SOURCE_DIR}/tests/mutation/main.c)
if(MK_TEST_SUPPORT)
  add_library(mk_test_support STATIC ${MK_TEST_SUPPORT})
  target_link_libraries(mk_test_support PUBLIC mk PkgConfig::CRITERION)
  target_compile_definitions(mk_test_support PRIVATE MK_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                             MK_FAKE_CUDA="$<TARGET_FILE:mk_fake_cuda>" MK_HANG_SECONDS=${MK_HANG_SECONDS}
                             MK_FAKE_NCCL_28="$<TARGET_FILE:mk_fake_nccl_28>"
                             MK_FAKE_NCCL_29="$<TARGET_FILE:mk_fake_nccl_29>")
  add_dependencies(mk_test_support mk_fake_cuda mk_fake_nccl_28 mk_fake_nccl_29)
endif()

# The command over both: one rank of several processes.
if(TARGET mkvm)
  add_executable(mk_rank_command ${MK_COMMAND_SOURCES} tests/fake_nccl/command.c)
  target_link_libraries(mk_rank_command PRIVATE mk mk_test_support PkgConfig::LIBEDIT)
endif()

# The full mutation campaigns: tools/mutate.
add_library(mk_mutate_main OBJECT EXCLUDE_FROM_ALL tests/mutation/main.c)
target_link_libraries(mk_mutate_main PRIVATE mk_test_support)
add_executable(mk_mutate $<TARGET_OBJECTS:mk_mutate_main>)
target_link_libraries(mk_mutate PRIVATE mk_test_support)
set_target_properties(mk_mutate PROPERTIES EXCLUDE_FROM_ALL ON)
include(tests/mutation/omissions.cmake)

# Long runs: tools/soak.
add_executable(mk_soak tests/soak/main.c)
target_link_libraries(mk_soak PRIVATE mk_test_support)
add_executable(mk_soak_serve tests/soak/serve.c)
target_link_libraries(mk_soak_serve PRIVATE mk)
set_target_properties(mk_soak mk_soak_serve PROPERTIES EXCLUDE_FROM_ALL ON)

# Renders templates for tests/text/compare_templates.py.
add_executable(mk_render_template tests/text/render_template.c)
target_link_libraries(mk_render_template PRIVATE mk)
set_target_properties(mk_render_template PROPERTIES EXCLUDE_FROM_ALL ON)

# How fast the page of `mkvm trace -o out.html` opens and pans.
add_executable(mk_page_bench tests/profiler/bench_page.c)
target_link_libraries(mk_page_bench PRIVATE mk_test_support)
set_target_properties(mk_page_bench PROPERTIES EXCLUDE_FROM_ALL ON)

if(MK_SANITIZE MATCHES "address")
  add_library(mk_sanitizer_options OBJECT tests/sanitize/options.c)
  add_library(mk_leak_check OBJECT tests/sanitize/leak_check.c)
  target_link_libraries(mk_leak_check PUBLIC PkgConfig::CRITERION)
  if(TARGET mkvm)
    target_link_libraries(mkvm PRIVATE $<TARGET_OBJECTS:mk_sanitizer_options>)
  endif()
endif()

if(MK_SANITIZE STREQUAL "thread")
  add_library(mk_in_process OBJECT tests/sanitize/in_process.c)
  target_link_libraries(mk_in_process PUBLIC PkgConfig::CRITERION)
endif()

# A test program as every one is built, planted faults included.
function(mk_test_program target source)
  add_executable(${target} ${source})
  target_link_libraries(${target} PRIVATE mk PkgConfig::CRITERION)
  target_compile_definitions(${target} PRIVATE MK_SOURCE_DIR="${PROJECT_SOURCE_DIR}" MK_HANG_SECONDS=${MK_HANG_SECONDS})
  if(TARGET mk_test_support)
    target_link_libraries(${target} PRIVATE mk_test_support)
  endif()
  if(TARGET mk_in_process)
    target_link_libraries(${target} PRIVATE $<TARGET_OBJECTS:mk_in_process>)
  endif()
  if(TARGET mk_leak_check)
    target_link_libraries(${target} PRIVATE $<TARGET_OBJECTS:mk_leak_check> $<TARGET_OBJECTS:mk_sanitizer_options>)
    target_link_options(${target} PRIVATE -Wl,--wrap=criterion_internal_test_main)
  endif()
endfunction()

file(GLOB_RECURSE MK_TEST_SOURCES CONFIGURE_DEPENDS tests/test_*.c)
if(TARGET mk_in_process) # those that have threads
  set(with_threads "vm/test_threads" "engine/test_synth_weights" "lib/test_(mkvm|threads|serve)"
      "serve/test_(metrics|http|http_limits|http_listen|http_pieces|server|server_load|server_log|server_streams)")
  list(JOIN with_threads "|" with_threads)
  list(FILTER MK_TEST_SOURCES INCLUDE REGEX "/(${with_threads})\\.c$")
endif()
foreach(source ${MK_TEST_SOURCES})
  file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR}/tests ${source})
  string(REGEX REPLACE "\\.c$" "" name ${name})
  string(REPLACE "/" "." name ${name})
  string(REPLACE "test_" "" name ${name})
  mk_test_program(test_${name} ${source})
  # Tests of the command find it through this macro.
  if(TARGET mkvm AND name MATCHES "^(bad|tools)\\.")
    target_compile_definitions(test_${name} PRIVATE MK_COMMAND="$<TARGET_FILE:mkvm>"
                               MK_RANK_COMMAND="$<TARGET_FILE:mk_rank_command>")
    add_dependencies(test_${name} mkvm mk_rank_command)
  endif()
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${MK_TEST_SECONDS})
  # They choose ports that are free and bind them a moment later.
  if(name MATCHES "(processes|rendezvous)$")
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK ports)
  endif()
endforeach()

# What these programs do is counted, in these sources, by tests/support/steps.h.
function(mk_count_steps name)
  if(TARGET test_${name})
    add_library(mk_counted_${name} OBJECT ${ARGN})
    target_link_libraries(mk_counted_${name} PRIVATE mk)
    target_compile_options(mk_counted_${name} PRIVATE -fsanitize-coverage=trace-pc)
    target_link_libraries(test_${name} PRIVATE $<TARGET_OBJECTS:mk_counted_${name}>)
  endif()
endfunction()
file(GLOB MK_VERIFIER_SOURCES CONFIGURE_DEPENDS vm/verify/*.c)
file(GLOB MK_TOKENIZER_SOURCES CONFIGURE_DEPENDS text/tokenizer*.c)
mk_count_steps(vm.verify.cost ${MK_VERIFIER_SOURCES})
mk_count_steps(bad.text ${MK_TOKENIZER_SOURCES})

# What can be seen of libmkvm. Sanitizers add symbols of their own.
if(NOT MK_SANITIZE)
  find_program(MK_CXX NAMES c++ g++ clang++)
  add_test(NAME lib.header COMMAND ${PROJECT_SOURCE_DIR}/tests/lib/check_header.sh ${CMAKE_C_COMPILER}
           "$<$<BOOL:${MK_CXX}>:${MK_CXX}>" $<TARGET_FILE:mkvm_shared>)
  set_tests_properties(lib.header PROPERTIES TIMEOUT ${MK_TEST_SECONDS} SKIP_RETURN_CODE 77)
endif()

# Pages: their links and lengths; their commands, by this build's mkvm.
add_test(NAME docs.pages COMMAND ${PROJECT_SOURCE_DIR}/tests/docs/check_pages.sh)
set_tests_properties(docs.pages PROPERTIES TIMEOUT ${MK_TEST_SECONDS})
if(TARGET mkvm AND NOT MK_SANITIZE)
  add_test(NAME docs.commands COMMAND ${PROJECT_SOURCE_DIR}/tests/docs/run_pages.sh ${PROJECT_BINARY_DIR})
  set_tests_properties(docs.commands PROPERTIES TIMEOUT ${MK_TEST_SECONDS})
endif()

# An opcode that no product has, with more operands and parameters than any: what has to do with programs, built with
# tests/wide/opcodes.def.
file(GLOB MK_WIDE_SOURCES CONFIGURE_DEPENDS vm/*.c vm/program/*.c vm/verify/*.c vm/trace/*.c vm/cpu/*.c
     instructions/*.c tests/wide/*.c)
if(NOT TARGET mk_in_process)
  add_executable(test_vm.wide ${MK_WIDE_SOURCES})
  target_include_directories(test_vm.wide PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(test_vm.wide PRIVATE MK_TEST_OPCODES="tests/wide/opcodes.def"
                             MK_HANG_SECONDS=${MK_HANG_SECONDS})
  target_link_libraries(test_vm.wide PRIVATE PkgConfig::CRITERION PkgConfig::ZLIB m pthread)
  if(TARGET mk_leak_check)
    target_link_libraries(test_vm.wide PRIVATE $<TARGET_OBJECTS:mk_leak_check> $<TARGET_OBJECTS:mk_sanitizer_options>)
    target_link_options(test_vm.wide PRIVATE -Wl,--wrap=criterion_internal_test_main)
  endif()
  add_test(NAME vm.wide COMMAND test_vm.wide)
  set_tests_properties(vm.wide PROPERTIES TIMEOUT ${MK_TEST_SECONDS})
endif()

# Programs with a planted fault: each must fail, by the means that every other test has.
if(MK_SANITIZE)
  function(mk_planted_fault name words)
    mk_test_program(planted_${name} ${PROJECT_SOURCE_DIR}/tests/sanitize/${name}.c)
    add_test(NAME sanitize.${name}
             COMMAND ${PROJECT_SOURCE_DIR}/tests/sanitize/expect_fault.sh $<TARGET_FILE:planted_${name}> ${words})
    set_tests_properties(sanitize.${name} PROPERTIES TIMEOUT ${MK_TEST_SECONDS})
  endfunction()
endif()
if(MK_SANITIZE STREQUAL "thread")
  mk_planted_fault(race "ThreadSanitizer: data race")
endif()
if(MK_SANITIZE STREQUAL "address,undefined")
  mk_planted_fault(leak "LeakSanitizer: detected memory leaks")
  mk_planted_fault(leak_in_fini "LeakSanitizer: detected memory leaks")
  mk_planted_fault(heap_overflow "AddressSanitizer: heap-buffer-overflow")
  mk_planted_fault(use_after_free "AddressSanitizer: heap-use-after-free")
  mk_planted_fault(use_after_free_in_fini "AddressSanitizer: heap-use-after-free")
  mk_planted_fault(integer_overflow "signed integer overflow")
  mk_test_program(planted_clean ${PROJECT_SOURCE_DIR}/tests/sanitize/clean.c)
  add_test(NAME sanitize.clean COMMAND planted_clean)
  set_tests_properties(sanitize.clean PROPERTIES TIMEOUT ${MK_TEST_SECONDS})
endif()
