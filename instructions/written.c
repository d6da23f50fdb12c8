/* See written.h. */
#include "instructions/written.h"

#include <string.h>

struct mk_written {
  const mk_program *program;
  uint32_t **generations; /* by buffer, [copies][rows][cols]; NULL where nobody looks */
};

static bool is_written_by_programs(const mk_buffer *buffer) {
  return buffer->kind == MK_KIND_ACTIVATION || buffer->kind == MK_KIND_OUTPUT;
}

static size_t elements(const mk_buffer *buffer) { return (size_t)buffer->rows * buffer->cols; }

static bool has_copies(const mk_program *program, const mk_buffer *buffer) {
  return buffer->store == MK_STORE_PLAIN && mk_buffer_is_pushed(program, buffer);
}

static size_t all_elements(const mk_program *program, const mk_buffer *buffer) {
  return elements(buffer) * (has_copies(program, buffer) ? program->machine.ranks : 1);
}

mk_status mk_written_new(const mk_program *program, mk_written **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  mk_written *written = *out;
  written->program = program;
  mk_status status = mk_alloc(program->buffer_count, sizeof *written->generations, &written->generations);
  for (size_t b = 0; b < program->buffer_count && status == MK_OK; b++) {
    if (is_written_by_programs(&program->buffers[b])) {
      status = mk_alloc(all_elements(program, &program->buffers[b]), sizeof *written->generations[b],
                        &written->generations[b]);
    }
  }
  if (status != MK_OK) {
    mk_written_free(written);
    *out = NULL;
  }
  return status;
}

void mk_written_free(mk_written *written) {
  if (written == NULL) {
    return;
  }
  for (size_t b = 0; written->generations != NULL && b < written->program->buffer_count; b++) {
    mk_free(written->generations[b]);
  }
  mk_free(written->generations);
  mk_free(written);
}

void mk_written_clear(mk_written *written) {
  for (size_t b = 0; b < written->program->buffer_count; b++) {
    if (written->generations[b] != NULL) {
      memset(written->generations[b], 0,
             all_elements(written->program, &written->program->buffers[b]) * sizeof *written->generations[b]);
    }
  }
}

/* NULL: nobody looks at this buffer. */
static uint32_t *find(const mk_written *written, const mk_written_place *place) {
  uint32_t *generations = written->generations[place->buffer - written->program->buffers];
  const size_t copy = has_copies(written->program, place->buffer) ? place->rank * elements(place->buffer) : 0;
  return generations == NULL ? NULL : generations + copy + (size_t)place->row * place->buffer->cols + place->col;
}

bool mk_written_has(const mk_written *written, mk_written_place place, uint32_t i, uint32_t generation) {
  const uint32_t *at = find(written, &place);
  return at != NULL && at[i] == generation;
}

void mk_written_note(mk_written *written, mk_written_place place, uint32_t generation) {
  uint32_t *at = find(written, &place);
  for (uint32_t i = 0; at != NULL && i < place.count; i++) {
    at[i] = generation;
  }
}

bool mk_written_check(const mk_written *written, mk_written_place place, uint32_t generation, mk_written_gap *gap) {
  const uint32_t *at = find(written, &place);
  for (uint32_t i = 0; at != NULL && i < place.count; i++) {
    if (at[i] != generation) {
      *gap = (mk_written_gap){.col = place.col + i, .written = at[i]};
      return false;
    }
  }
  return true;
}
