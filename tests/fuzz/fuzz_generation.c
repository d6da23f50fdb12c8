/* generation_config.json over a configuration of 1000 tokens. */
#include <string.h>

#include "models/config.h"
#include "tests/fuzz/support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mk_config config = {.vocab = 1000, .eos_count = 1, .eos = {7}};
  const mk_config before = config;
  mk_status status = mk_config_parse_generation((const char *)data, size, &config);
  fuzz_expect_parsed(status);
  fuzz_require(status == MK_OK || memcmp(&config, &before, sizeof config) == 0,
               "a refused file has changed the configuration");
  fuzz_require(!config.has_bos || config.bos < config.vocab, "bos %u", config.bos);
  fuzz_require(config.eos_count <= MK_MAX_EOS, "%u eos ids", config.eos_count);
  for (uint32_t i = 0; i < config.eos_count; i++) {
    fuzz_require(config.eos[i] < config.vocab, "eos %u", config.eos[i]);
  }
  return 0;
}
