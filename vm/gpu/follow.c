/* How rank 0 leads the machines of other processes. See group.h and group_internal.h.
 *
 * What rank 0's engine asks of its machine (writes and reads of buffers, launches) is an order to all others, which do
 * the same to theirs, each on its own GPU, and answer. So one process decides everything, and the others need neither
 * prompts nor tokens. */
#include <poll.h>
#include <string.h>

#include "vm/gpu/extra.h"
#include "vm/gpu/group_internal.h"

mk_status mk_gpu_order(const mk_gpu *gpu, mk_group_head order, const void *data) {
  if (gpu->group == NULL || !gpu->group->leads) {
    return mk_gpu_still_here(gpu);
  }
  order.machine = gpu->number;
  MK_TRY(mk_group_watch(gpu->group, false));
  return mk_group_order(gpu->group, order, data);
}

mk_status mk_gpu_ordered(const mk_gpu *gpu, mk_status own, mk_group_answer_fn *fn, void *user) {
  return gpu->group == NULL || !gpu->group->leads ? own : mk_group_answers(gpu->group, own, fn, user);
}

mk_status mk_gpu_still_here(const mk_gpu *gpu) {
  return gpu->group == NULL || gpu->group->follows ? MK_OK : mk_group_watch(gpu->group, true);
}

mk_status mk_group_lead(mk_group *group) {
  mk_group_expect(group);
  for (uint32_t r = 1; r < group->ranks; r++) {
    mk_group_head head;
    void *data;
    MK_TRY(mk_group_receive(group, &group->peers[r], true, &head, &data));
    mk_free(data);
  }
  group->leads = true;
  return MK_OK;
}

/* ---- Reads ---- */

typedef struct run_head { /* of bytes of a buffer */
  uint64_t from, bytes;
} run_head;

typedef struct collected {
  const mk_gpu *gpu;
  uint8_t *data;
  size_t size, capacity;
  const char *name;
} collected;

static mk_status collect_run(void *user, mk_cu_address at, uint64_t from, uint64_t bytes) {
  collected *c = user;
  const run_head head = {.from = from, .bytes = bytes};
  MK_TRY(mk_grow(&c->data, &c->capacity, c->size + sizeof head + bytes, 1));
  memcpy(c->data + c->size, &head, sizeof head);
  c->size += sizeof head;
  MK_TRY(mk_gpu_copy_out(c->gpu, c->data + c->size, at, bytes, c->name));
  c->size += bytes;
  return MK_OK;
}

static mk_status collect(mk_gpu *gpu, const mk_group_head *order, collected *out) {
  MK_TRY(mk_gpu_check_range(gpu, order->a, order->b, order->c));
  *out = (collected){.gpu = gpu, .name = gpu->program->buffers[order->a].name};
  return mk_gpu_each_run(gpu, order->a, order->b, order->c, collect_run, out);
}

mk_status mk_group_each_run(const void *data, uint64_t size, void *to, uint64_t offset, uint64_t bytes) {
  const uint8_t *at = data;
  run_head head;
  for (uint64_t left = size; left >= sizeof head; at += head.bytes, left -= head.bytes) {
    memcpy(&head, at, sizeof head);
    at += sizeof head;
    left -= sizeof head;
    if (head.bytes > left || head.from < offset || head.bytes > bytes || head.from - offset > bytes - head.bytes) {
      return mk_error(MK_ERR_DEVICE, "a rank sends other bytes than those that were read");
    }
    memcpy((uint8_t *)to + (head.from - offset), at, head.bytes);
  }
  return MK_OK;
}

/* ---- Another rank ---- */

static mk_status prepare(mk_gpu *gpu, const mk_group_head *order, const void *data) {
  if (order->bytes != order->a * gpu->rows * sizeof(mk_step_row) || order->a > UINT32_MAX) {
    return mk_error(MK_ERR_USAGE, "a plan of %llu steps has %llu bytes", (unsigned long long)order->a,
                    (unsigned long long)order->bytes);
  }
  return mk_gpu_prepare(gpu, data, (uint32_t)order->a, NULL);
}

/* Does the same as rank 0, and answers. */
static mk_status obey(mk_group *group, mk_gpu *gpu, const mk_group_head *order, const void *data) {
  mk_status status = MK_OK;
  double rate;
  collected read = {0};
  const void *answer = NULL;
  uint64_t bytes = 0;
  switch (order->kind) {
    case MK_ORDER_WRITE:
      status = mk_gpu_write(gpu, order->a, order->b, data, order->bytes);
      break;
    case MK_ORDER_READ:
      status = collect(gpu, order, &read);
      answer = read.data;
      bytes = read.size;
      break;
    case MK_ORDER_CLEAR:
      status = mk_gpu_clear(gpu);
      break;
    case MK_ORDER_PREPARE:
      status = prepare(gpu, order, data);
      break;
    case MK_ORDER_START:
      status = mk_gpu_begin(gpu);
      break;
    case MK_ORDER_FINISH:
      status = mk_gpu_end(gpu);
      answer = &gpu->ended;
      bytes = sizeof gpu->ended;
      break;
    case MK_ORDER_BANDWIDTH:
      status = mk_gpu_read_bandwidth(gpu, order->a, &rate);
      answer = &rate;
      bytes = sizeof rate;
      break;
    default:
      status = mk_error(MK_ERR_USAGE, "there is no order %u", order->kind);
  }
  const bool lost = group->broken != MK_OK;
  status = lost ? status : mk_group_answer(group, status, answer, bytes);
  mk_free(read.data);
  return status;
}

/* While the machine is at work it is looked at as well: a launch that fails is told of when rank 0 asks for its end. */
static mk_status next_order(mk_group *group, mk_gpu *launched, mk_group_head *order, void **data) {
  for (bool found = false; launched != NULL && launched->in_flight != 0;) {
    struct pollfd p = {.fd = group->peers[0].fd, .events = POLLIN};
    MK_TRY(mk_group_find(group, &group->peers[0], true, order, &found));
    if (found) {
      break;
    }
    (void)poll(&p, 1, 1);
    (void)mk_gpu_look(launched);
  }
  return mk_group_receive(group, &group->peers[0], launched != NULL && launched->in_flight != 0, order, data);
}

static mk_status follow(mk_group *group, mk_gpu **launched) {
  for (;;) {
    mk_group_head order;
    void *data;
    MK_TRY(next_order(group, *launched, &order, &data));
    if (group->over) {
      return MK_OK;
    }
    mk_gpu *gpu = order.machine < group->machine_count ? group->machines[order.machine] : NULL;
    mk_status status = MK_OK;
    if (gpu == NULL) {
      status = mk_error(MK_ERR_USAGE, "there is no machine %u", order.machine);
      status = mk_group_answer(group, status, NULL, 0);
    } else {
      status = obey(group, gpu, &order, data);
      *launched = order.kind == MK_ORDER_START ? gpu : *launched;
    }
    mk_free(data);
    MK_TRY(status);
  }
}

mk_status mk_group_follow(mk_group *group) {
  mk_gpu *launched = NULL;
  group->follows = true;
  mk_status status = mk_group_answer(group, MK_OK, NULL, 0);
  status = status == MK_OK ? follow(group, &launched) : status;
  if (launched != NULL) {
    mk_gpu_abandon(launched);
  }
  return group->broken != MK_OK ? mk_error(group->broken, "%s", group->why) : status;
}
