/* What the fuzz targets share. A target defines LLVMFuzzerTestOneInput, which gets arbitrary bytes in a buffer of
 * exactly their length; what it asserts beyond "no crash, no leak, no hang" it asserts with fuzz_require. One
 * thread. */
#ifndef MK_FUZZ_SUPPORT_H
#define MK_FUZZ_SUPPORT_H

#include "vm/program/program.h"
#include "vm/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A finding: prints the message and aborts, so that libFuzzer keeps the input. */
#define fuzz_require(condition, ...) ((condition) ? (void)0 : fuzz_fail(__VA_ARGS__))
_Noreturn void fuzz_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* What every parser promises of its status: success, or a failure of the kinds a file can cause, with a message. */
void fuzz_expect_parsed(mk_status status);

/* Whether jansson, which shares no code with ours, takes the bytes for UTF-8. */
bool fuzz_is_utf8(const char *text, size_t length);

/* A program that the verifier accepted runs on the CPU machine: a few steps in some interleavings, with races looked
 * for. Programs that ask for more memory than a run of many thousands a minute can have are left out. */
void fuzz_run_accepted(const mk_program *program);

#endif
