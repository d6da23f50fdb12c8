/* config.json, and what is derived from one that is accepted. */
#include <math.h>
#include <string.h>

#include "models/llama.h"
#include "tests/fuzz/support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mk_config config;
  memset(&config, 0x5a, sizeof config);
  const mk_config before = config;
  mk_status status = mk_config_parse((const char *)data, size, &config);
  fuzz_expect_parsed(status);
  if (status != MK_OK) {
    fuzz_require(memcmp(&config, &before, sizeof config) == 0, "a refused file has changed the configuration");
    return 0;
  }
  fuzz_require(config.heads > 0 && config.kv_heads > 0 && config.heads % config.kv_heads == 0, "%u heads, %u KV heads",
               config.heads, config.kv_heads);
  fuzz_require(config.layers > 0 && config.layers <= MK_MAX_LAYERS, "%u layers", config.layers);
  fuzz_require(config.head_dim == 64 || config.head_dim == 128 || config.head_dim == 256, "heads of %u",
               config.head_dim);
  fuzz_require(isfinite(config.rope_theta) && config.rope_theta > 0, "rope_theta %g", config.rope_theta);
  fuzz_require(isfinite(config.rms_eps), "rms_norm_eps %g", (double)config.rms_eps);
  fuzz_require(config.rope_type == MK_ROPE_DEFAULT || (config.rope_factor >= 1 && config.rope_factor <= 1e9),
               "rope factor %g", config.rope_factor);
  fuzz_require(config.rope_type != MK_ROPE_LLAMA3 || config.rope_original_max_position > 0, "an original context of 0");
  fuzz_require(!config.has_bos || config.bos < config.vocab, "bos %u of %u", config.bos, config.vocab);
  fuzz_require(config.eos_count <= MK_MAX_EOS, "%u eos ids", config.eos_count);
  for (uint32_t i = 0; i < config.eos_count; i++) {
    fuzz_require(config.eos[i] < config.vocab, "eos %u of %u", config.eos[i], config.vocab);
  }
  for (uint32_t i = 0; i < config.ignored_count && i < MK_MAX_IGNORED; i++) {
    const mk_ignored_id *ignored = &config.ignored[i];
    fuzz_require(ignored->id < 0 || ignored->id >= (int64_t)config.vocab, "%s %lld ignored", ignored->key,
                 (long long)ignored->id);
  }
  float frequencies[MK_MAX_PAIRS]; /* half a head */
  mk_llama_frequencies(&config, frequencies);
  for (uint32_t i = 0; i < config.head_dim / 2; i++) {
    fuzz_require(isfinite(frequencies[i]), "frequency %u is %g", i, (double)frequencies[i]);
  }
  for (uint32_t layer = 0; layer < config.layers; layer++) {
    fuzz_require(mk_config_window(&config, layer) < config.max_position, "a window of all positions");
  }
  return 0;
}
