/* What no machine does, and no run on a CPU shows. See generated.h. */
#include "instructions/mla.h"
#include "tests/mutation/generated.h"

static mk_status breaks(const mk_instruction *in, const char *what) {
  return mk_error(MK_ERR_DEVICE, "contract: instruction %u (%s) %s", in->uid, mk_opcode_lookup(in->opcode)->name, what);
}

/* Buffers and counters of scope SM are seen by one SM: owner + 1, by number. */
static bool claims(uint8_t *owner, uint32_t queue) {
  bool mine = *owner == 0 || *owner == queue + 1;
  *owner = (uint8_t)(queue + 1);
  return mine;
}

static mk_status check_instruction(const mk_program *p, const mk_instruction *in, uint32_t q, uint8_t *buffers,
                                   uint8_t *counters) {
  if (in->uid == 0) {
    return breaks(in, "has uid 0, which stands for no instruction where a fault or a delay names one");
  }
  if (in->opcode == MK_OP_NEXT && in->signal_count != 0) {
    return breaks(in, "signals; it has no storer, and a machine's `next` signals nothing");
  }
  for (uint32_t slot = 0; slot < mk_opcode_lookup(in->opcode)->operand_count; slot++) {
    const mk_operand *o = &in->operands[slot];
    if (o->rows != 0 && p->buffers[o->buffer].scope == MK_SCOPE_SM && !claims(&buffers[o->buffer], q)) {
      return breaks(in, "touches a buffer that another SM keeps to itself");
    }
  }
  for (uint32_t k = 0; k < in->wait_count; k++) {
    uint32_t c = in->waits[k].counter;
    if (p->counters[c].scope == MK_SCOPE_SM && !claims(&counters[c], q)) {
      return breaks(in, "waits for a counter that another SM keeps to itself");
    }
  }
  for (uint32_t k = 0; k < in->signal_count; k++) {
    uint32_t c = in->signals[k].counter;
    if (p->counters[c].scope == MK_SCOPE_SM && !claims(&counters[c], q)) {
      return breaks(in, "signals a counter that another SM keeps to itself");
    }
  }
  return MK_OK;
}

static mk_status check_queues(const mk_program *p, uint8_t *buffers, uint8_t *counters) {
  bool listed = mk_program_listed(p);
  for (uint32_t q = 0; q < p->queue_count; q++) {
    bool ends = listed || p->queues[q].count == 0;
    for (uint32_t i = p->queues[q].first; i < p->queues[q].first + p->queues[q].count; i++) {
      MK_TRY(check_instruction(p, &p->instructions[i], q, buffers, counters));
      ends |= p->instructions[i].opcode == MK_OP_NEXT;
    }
    if (!ends) {
      return mk_error(MK_ERR_DEVICE,
                      "contract: SM %u has instructions and no `next`, where alone a machine learns that a launch ends",
                      q);
    }
  }
  return MK_OK;
}

mk_status generated_contract(const mk_program *p) {
  uint8_t *buffers, *counters;
  MK_TRY(mk_alloc(p->buffer_count, 1, &buffers));
  mk_status status = mk_alloc(p->counter_count, 1, &counters);
  if (status == MK_OK) {
    status = check_queues(p, buffers, counters);
    mk_free(counters);
  }
  mk_free(buffers);
  return status;
}
