/* The line between the processes of a group: messages, and who is gone. See group.h and group_internal.h.
 *
 * Sockets do not block. Of rank 0 a thread says each second that the process lives; all else is one thread's. A
 * message is a head and what follows it; heads are looked at before they are taken, so that notes are heard at any
 * time, and answers stay where they are until they are waited for. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "vm/gpu/group_internal.h"

enum { MAGIC = 0x6d6b6770, HERE_MS = 1000, HANG_UP_MS = 1000 };

static const uint64_t kMostBytes = UINT64_C(1) << 36; /* of a message that makes sense */

uint64_t mk_group_now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint32_t mk_group_rank(const mk_group *group) { return group->rank; }
uint32_t mk_group_ranks(const mk_group *group) { return group->ranks; }

mk_group_kept mk_group_keep_message(void) {
  mk_group_kept kept;
  (void)snprintf(kept.text, sizeof kept.text, "%s", mk_error_message());
  return kept;
}

void mk_group_restore_message(const mk_group_kept *kept) { (void)mk_error(MK_ERR_RUNTIME, "%s", kept->text); }

/* ---- Bytes ---- */

/* Waits for more to go on with; false: not by the deadline. */
static bool wait_for(int fd, short events, uint64_t until_ms) {
  const uint64_t now = mk_group_now_ms();
  struct pollfd p = {.fd = fd, .events = events};
  if (now >= until_ms) {
    return false;
  }
  const uint64_t left = until_ms - now;
  (void)poll(&p, 1, left < MK_GROUP_LOOK_MS ? (int)left : MK_GROUP_LOOK_MS);
  return true;
}

mk_status mk_group_put(int fd, const void *from, size_t bytes, uint64_t until_ms) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t put = send(fd, (const uint8_t *)from + done, bytes - done, MSG_NOSIGNAL);
    if (put > 0) {
      done += (size_t)put;
    } else if (put < 0 && errno != EAGAIN && errno != EINTR) {
      return mk_error(MK_ERR_RUNTIME, "is gone (%s)", strerror(errno));
    } else if (!wait_for(fd, POLLOUT, until_ms)) {
      return mk_error(MK_ERR_RUNTIME, "takes no message");
    }
  }
  return MK_OK;
}

static mk_status take(int fd, void *to, size_t bytes, uint64_t deadline_ms) {
  const uint64_t until_ms = mk_group_now_ms() + deadline_ms;
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = recv(fd, (uint8_t *)to + done, bytes - done, 0);
    if (got > 0) {
      done += (size_t)got;
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return mk_error(MK_ERR_RUNTIME, "is gone");
    } else if (!wait_for(fd, POLLIN, until_ms)) {
      return mk_error(MK_ERR_RUNTIME, "has said nothing for %llu s", (unsigned long long)(deadline_ms / 1000));
    }
  }
  return MK_OK;
}

/* ---- A group that breaks ---- */

static mk_status tell_broken(const mk_group *group) { return mk_error(group->broken, "%s", group->why); }

/* To everybody who takes it at once: a process that stands still hears of the end when its line closes. */
static void tell_end(mk_group *group, mk_status status, const char *why) {
  mk_group_head head = {.magic = MAGIC, .kind = MK_NOTE_END, .status = (int32_t)status, .bytes = strlen(why)};
  (void)pthread_mutex_lock(&group->sending);
  for (uint32_t r = 0; r < group->ranks; r++) {
    const int fd = group->peers[r].fd;
    if (fd >= 0 && mk_group_put(fd, &head, sizeof head, 0) == MK_OK) {
      (void)mk_group_put(fd, why, head.bytes, 0);
    }
  }
  (void)pthread_mutex_unlock(&group->sending);
}

mk_status mk_group_break(mk_group *group, mk_status status, const char *format, ...) {
  if (group->broken == MK_OK) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(group->why, sizeof group->why, format, arguments);
    va_end(arguments);
    group->broken = status;
    tell_end(group, status, group->why);
  }
  return tell_broken(group);
}

static mk_status lose(mk_group *group, const mk_group_peer *peer) {
  return mk_group_break(group, MK_ERR_DEVICE, "%s %s", peer->name, mk_error_message());
}

/* ---- Messages ---- */

mk_status mk_group_send(mk_group *group, mk_group_peer *peer, mk_group_head head, const void *data) {
  const uint64_t until = mk_group_now_ms() + group->deadline_ms;
  if (group->broken != MK_OK) {
    return tell_broken(group);
  }
  head.magic = MAGIC;
  (void)pthread_mutex_lock(&group->sending);
  mk_status status = mk_group_put(peer->fd, &head, sizeof head, until);
  status = status == MK_OK && head.bytes != 0 ? mk_group_put(peer->fd, data, head.bytes, until) : status;
  (void)pthread_mutex_unlock(&group->sending);
  return status == MK_OK ? MK_OK : lose(group, peer);
}

/* A text in the place of data, where the status is not MK_OK. */
static mk_status send_status(mk_group *group, mk_group_peer *peer, mk_status status, const void *data, uint64_t bytes) {
  char why[MK_GROUP_WHY] = "";
  mk_group_head head = {.kind = MK_GROUP_ANSWER, .status = (int32_t)status, .bytes = bytes};
  if (status != MK_OK) {
    snprintf(why, sizeof why, "%s", mk_error_message());
    head.bytes = strlen(why);
  }
  return mk_group_send(group, peer, head, status == MK_OK ? data : why);
}

/* The head of the next message, if all of it is there; it stays there. */
static mk_status peek(mk_group *group, mk_group_peer *peer, mk_group_head *head, bool *found) {
  const ssize_t got = recv(peer->fd, head, sizeof *head, MSG_PEEK);
  *found = got == (ssize_t)sizeof *head;
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
    return mk_group_break(group, MK_ERR_DEVICE, "%s is gone", peer->name);
  }
  if (*found && (head->magic != MAGIC || head->bytes > kMostBytes)) {
    return mk_group_break(group, MK_ERR_DEVICE, "%s says what no rank says", peer->name);
  }
  return MK_OK;
}

/* Takes what was peeked at, and what follows, with a zero after it. */
static mk_status take_message(mk_group *group, mk_group_peer *peer, const mk_group_head *head, void **data) {
  mk_group_head again;
  *data = NULL;
  MK_TRY(mk_alloc(head->bytes + 1, 1, data));
  mk_status status = take(peer->fd, &again, sizeof again, group->deadline_ms);
  status = status == MK_OK ? take(peer->fd, *data, head->bytes, group->deadline_ms) : status;
  if (status != MK_OK) {
    mk_free(*data);
    *data = NULL;
    return lose(group, peer);
  }
  peer->heard_ms = mk_group_now_ms();
  return MK_OK;
}

/* What a note means. */
static mk_status hear(mk_group *group, const mk_group_peer *peer, const mk_group_head *head, const char *why) {
  if (head->kind == MK_NOTE_STOP) {
    if (group->stop == NULL) {
      return mk_group_break(group, MK_ERR_RUNTIME, "%s was interrupted", peer->name);
    }
    *group->stop = 1;
  } else if (head->kind == MK_NOTE_END && head->status == MK_OK && group->rank != 0) {
    group->over = true;
  } else if (head->kind == MK_NOTE_END && head->status == MK_OK) {
    return mk_group_break(group, MK_ERR_DEVICE, "%s has ended", peer->name);
  } else if (head->kind == MK_NOTE_END) {
    const bool told = strncmp(why, "rank ", 5) == 0; /* of the rank at fault, by somebody who knows its name */
    return mk_group_break(group, (mk_status)head->status, "%s%s%s", told ? "" : peer->name, told ? "" : ": ", why);
  }
  return MK_OK;
}

/* Takes all notes that are there. */
static mk_status hear_notes(mk_group *group, mk_group_peer *peer) {
  while (!group->over) {
    mk_group_head head;
    void *why = NULL;
    bool found;
    MK_TRY(peek(group, peer, &head, &found));
    if (!found || head.kind > MK_NOTE_END) {
      peer->heard_ms = found ? mk_group_now_ms() : peer->heard_ms; /* its answer is there */
      return MK_OK;
    }
    MK_TRY(take_message(group, peer, &head, &why));
    const mk_status status = hear(group, peer, &head, why == NULL ? "" : why);
    mk_free(why);
    MK_TRY(status);
  }
  return MK_OK;
}

/* Of another rank than 0. */
static mk_status say_here(mk_group *group) {
  const uint64_t now = mk_group_now_ms();
  if (now - group->said_ms < HERE_MS) {
    return MK_OK;
  }
  group->said_ms = now;
  return mk_group_send(group, &group->peers[0], (mk_group_head){.kind = MK_NOTE_HERE}, NULL);
}

/* Signals are for the threads of the caller. */
bool mk_group_start_thread(pthread_t *thread, void *(*run)(void *user), void *user) {
  sigset_t all, before;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool started = pthread_create(thread, NULL, run, user) == 0;
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

/* Of rank 0. Who does not take it is missed by other means. */
static void *tick(void *user) {
  mk_group *group = user;
  const mk_group_head head = {.magic = MAGIC, .kind = MK_NOTE_HERE};
  const struct timespec moment = {.tv_nsec = (long)MK_GROUP_LOOK_MS * 1000000};
  uint64_t said = 0;
  while (__atomic_load_n(&group->done, __ATOMIC_ACQUIRE) == 0) {
    const uint64_t now = mk_group_now_ms();
    for (uint32_t r = 1; r < group->ranks && now - said >= HERE_MS; r++) {
      (void)pthread_mutex_lock(&group->sending);
      (void)mk_group_put(group->peers[r].fd, &head, sizeof head, now + group->deadline_ms);
      (void)pthread_mutex_unlock(&group->sending);
    }
    said = now - said >= HERE_MS ? now : said;
    (void)nanosleep(&moment, NULL);
  }
  return NULL;
}

static void end_ticks(mk_group *group) {
  if (group->ticks) {
    __atomic_store_n(&group->done, 1, __ATOMIC_RELEASE);
    (void)pthread_join(group->ticker, NULL);
    group->ticks = false;
  }
}

/* only: NULL, or the one that owes an answer; others that have given theirs have nothing to say. */
static mk_status find_silent(mk_group *group, const mk_group_peer *only) {
  const uint64_t now = mk_group_now_ms();
  for (uint32_t r = 0; r < group->ranks; r++) {
    const mk_group_peer *peer = &group->peers[r];
    if (peer->fd >= 0 && (only == NULL || peer == only) && now - peer->heard_ms > group->deadline_ms) {
      return mk_group_break(group, MK_ERR_DEVICE, "%s has said nothing for %llu s", peer->name,
                            (unsigned long long)((now - peer->heard_ms) / 1000));
    }
  }
  return MK_OK;
}

/* Another rank that is asked to stop leaves it to rank 0. */
static mk_status ask_to_stop(mk_group *group) {
  if (group->rank == 0 || group->stopping || group->cancel == NULL || *group->cancel == 0) {
    return MK_OK;
  }
  group->stopping = true;
  return mk_group_send(group, &group->peers[0], (mk_group_head){.kind = MK_NOTE_STOP}, NULL);
}

static mk_status look_around(mk_group *group, bool at_work, const mk_group_peer *only) {
  if (group->broken != MK_OK) {
    return tell_broken(group);
  }
  for (uint32_t r = 0; r < group->ranks && !group->over; r++) {
    MK_TRY(group->peers[r].fd >= 0 ? hear_notes(group, &group->peers[r]) : MK_OK);
  }
  if (group->over) {
    return MK_OK;
  }
  MK_TRY(ask_to_stop(group));
  MK_TRY(at_work && group->rank != 0 ? say_here(group) : MK_OK);
  return at_work || group->rank != 0 ? find_silent(group, only) : MK_OK;
}

mk_status mk_group_watch(mk_group *group, bool at_work) { return look_around(group, at_work, NULL); }

void mk_group_expect(mk_group *group) {
  for (uint32_t r = 0; r < group->ranks; r++) {
    group->peers[r].heard_ms = mk_group_now_ms();
  }
}

mk_status mk_group_find(mk_group *group, mk_group_peer *peer, bool at_work, mk_group_head *head, bool *found) {
  *found = false;
  MK_TRY(look_around(group, at_work, peer));
  if (group->over) {
    *head = (mk_group_head){.kind = MK_NOTE_END};
    *found = true;
    return MK_OK;
  }
  MK_TRY(peek(group, peer, head, found));
  *found = *found && head->kind > MK_NOTE_END;
  return MK_OK;
}

mk_status mk_group_receive(mk_group *group, mk_group_peer *peer, bool at_work, mk_group_head *head, void **data) {
  *data = NULL;
  for (;;) {
    bool found;
    MK_TRY(mk_group_find(group, peer, at_work, head, &found));
    if (found) {
      return group->over ? MK_OK : take_message(group, peer, head, data);
    }
    if (group->rank == 0 && !group->leads && group->cancel != NULL && *group->cancel != 0) {
      return mk_error(MK_ERR_RUNTIME, "interrupted while it waited for the other ranks");
    }
    (void)wait_for(peer->fd, POLLIN, UINT64_MAX);
  }
}

/* An answer; that of a rank that failed is an error. */
static mk_status receive_answer(mk_group *group, mk_group_peer *peer, mk_group_head *head, void **data) {
  MK_TRY(mk_group_receive(group, peer, true, head, data));
  if (head->kind == MK_GROUP_ANSWER && head->status == MK_OK) {
    return MK_OK;
  }
  const mk_status status =
      head->kind != MK_GROUP_ANSWER ? mk_group_break(group, MK_ERR_DEVICE, "%s has ended", peer->name)
      : group->rank == 0            ? mk_error((mk_status)head->status, "%s: %s", peer->name, (const char *)*data)
                                    : mk_error((mk_status)head->status, "%s", (const char *)*data);
  mk_free(*data);
  *data = NULL;
  return status;
}

/* ---- All together ---- */

/* Rank 0 hears them all, and then tells them all. */
static mk_status compare(mk_group *group, uint64_t value, const char *what) {
  mk_status status = MK_OK;
  for (uint32_t r = 1; r < group->ranks; r++) {
    mk_group_head head;
    void *data;
    MK_TRY(receive_answer(group, &group->peers[r], &head, &data));
    mk_free(data);
    if (head.a != value && status == MK_OK) {
      status = mk_error(MK_ERR_USAGE, "%s and rank 0 differ in %s", group->peers[r].name, what);
    }
  }
  char why[MK_GROUP_WHY];
  snprintf(why, sizeof why, "%s", status == MK_OK ? "" : mk_error_message());
  for (uint32_t r = 1; r < group->ranks; r++) {
    MK_TRY(send_status(group, &group->peers[r], status == MK_OK ? MK_OK : mk_error(status, "%s", why), NULL, 0));
  }
  return status == MK_OK ? MK_OK : mk_error(status, "%s", why);
}

mk_status mk_group_agree(mk_group *group, uint64_t value, const char *what) {
  mk_group_head head = {.kind = MK_GROUP_ANSWER, .a = value};
  void *data;
  mk_group_expect(group);
  if (group->rank == 0) {
    return compare(group, value, what);
  }
  MK_TRY(mk_group_send(group, &group->peers[0], head, NULL));
  MK_TRY(receive_answer(group, &group->peers[0], &head, &data));
  mk_free(data);
  return MK_OK;
}

mk_status mk_group_order(mk_group *group, mk_group_head order, const void *data) {
  mk_group_expect(group);
  for (uint32_t r = 1; r < group->ranks; r++) {
    MK_TRY(mk_group_send(group, &group->peers[r], order, data));
  }
  return MK_OK;
}

mk_status mk_group_answers(mk_group *group, mk_status own, mk_group_answer_fn *fn, void *user) {
  char why[MK_GROUP_WHY] = "";
  mk_status first = own;
  if (own != MK_OK) {
    snprintf(why, sizeof why, "%s", mk_error_message());
  }
  for (uint32_t r = 1; r < group->ranks && group->broken == MK_OK; r++) {
    mk_group_head head;
    void *data = NULL;
    mk_status status = receive_answer(group, &group->peers[r], &head, &data);
    status = status == MK_OK && fn != NULL ? fn(user, r, data, head.bytes) : status;
    mk_free(data);
    if (status != MK_OK && first == MK_OK) {
      first = status;
      snprintf(why, sizeof why, "%s", mk_error_message());
    }
  }
  if (group->broken != MK_OK) {
    return tell_broken(group);
  }
  return first == MK_OK ? MK_OK : mk_error(first, "%s", why);
}

mk_status mk_group_answer(mk_group *group, mk_status status, const void *data, uint64_t bytes) {
  return send_status(group, &group->peers[0], status, data, bytes);
}

/* ---- Its life ---- */

mk_status mk_group_add(mk_group *group, mk_gpu *gpu) {
  if (group->machine_count == MK_GROUP_MACHINES) {
    return mk_error(MK_ERR_USAGE, "ranks in several processes share at most %d machines", MK_GROUP_MACHINES);
  }
  gpu->group = group;
  gpu->number = group->machine_count;
  group->machines[group->machine_count++] = gpu;
  return MK_OK;
}

void mk_group_remove(mk_gpu *gpu) {
  if (gpu->group != NULL) {
    gpu->group->machines[gpu->number] = NULL;
  }
}

static void read_line(const char *path, char *to, size_t size) {
  FILE *file = fopen(path, "re");
  if (file != NULL && fgets(to, (int)size, file) != NULL) {
    to[strcspn(to, "\n")] = '\0';
  }
  if (file != NULL) {
    (void)fclose(file);
  }
}

static mk_status describe(const mk_group_options *options, uint64_t model, uint32_t device, mk_group_member *out) {
  const mk_driver *cu;
  const mk_nccl *nccl;
  mk_cu_device id;
  *out = (mk_group_member){
      .rank = options->rank, .ranks = options->ranks, .device = device, .pid = (uint32_t)getpid(), .model = model};
  MK_TRY(mk_driver_open(&cu));
  MK_TRY(mk_driver_device(cu, device, &id));
  MK_TRY(mk_driver_check(cu, cu->device_uuid(out->uuid, id), "asking the GPU for its number"));
  (void)cu->device_name(out->gpu, sizeof out->gpu, id);
  MK_TRY(mk_nccl_open(&nccl));
  out->nccl = nccl->version;
  snprintf(out->version, sizeof out->version, "%s", options->version == NULL ? "" : options->version);
  (void)gethostname(out->host, sizeof out->host - 1);
  read_line("/proc/sys/kernel/random/boot_id", out->boot, sizeof out->boot);
  return MK_OK;
}

mk_status mk_group_open(const mk_group_options *options, uint64_t model, uint32_t device, mk_group **out) {
  mk_group_member own;
  *out = NULL;
  if (options->ranks < 2 || options->ranks > MK_GPU_MOST_RANKS || options->rank >= options->ranks) {
    return mk_error(MK_ERR_USAGE, "rank %u of %u: there are 2 to %d ranks, counted from 0", options->rank,
                    options->ranks, MK_GPU_MOST_RANKS);
  }
  MK_TRY(describe(options, model, device, &own));
  MK_TRY(mk_alloc(1, sizeof **out, out));
  mk_group *group = *out;
  group->rank = options->rank;
  group->ranks = options->ranks;
  group->deadline_ms = 1000 * (uint64_t)(options->deadline_s == 0 ? MK_GROUP_DEADLINE_S : options->deadline_s);
  group->cancel = options->cancel;
  group->stop = options->stop;
  for (uint32_t r = 0; r < MK_GPU_MOST_RANKS; r++) {
    group->peers[r].fd = -1;
  }
  (void)pthread_mutex_init(&group->sending, NULL);
  mk_status status = mk_group_meet(group, options->address, &own);
  mk_group_expect(group);
  for (uint32_t r = 0; r < group->ranks && status == MK_OK; r++) {
    const int on = 1; /* a head is followed by more: the kernel is not to wait for an answer in between */
    (void)setsockopt(group->peers[r].fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  if (status == MK_OK && group->rank == 0) {
    group->ticks = mk_group_start_thread(&group->ticker, tick, group);
    status = group->ticks ? MK_OK : mk_group_break(group, MK_ERR_RUNTIME, "rank 0 can start no thread");
  }
  if (status != MK_OK) {
    group->over = true;
    mk_group_free(group);
    *out = NULL;
  }
  return status;
}

void mk_group_end(mk_group *group, mk_status status) {
  if (group == NULL || group->over || group->broken != MK_OK) {
    return;
  }
  end_ticks(group);
  if (status == MK_OK) {
    const mk_group_kept kept = mk_group_keep_message();
    group->over = true;
    tell_end(group, MK_OK, "");
    mk_group_restore_message(&kept);
    return;
  }
  char why[MK_GROUP_WHY];
  snprintf(why, sizeof why, "%s", mk_error_message());
  (void)mk_group_break(group, status, "%s", why);
}

/* A socket closed with something unread takes back what was sent last: so what comes is read until the other end
 * closes, too, or for a moment. */
static void hang_up(int fd, uint64_t until_ms) {
  char rest[256];
  (void)shutdown(fd, SHUT_WR);
  for (bool more = true; more;) {
    const ssize_t got = recv(fd, rest, sizeof rest, 0);
    more = got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR) && wait_for(fd, POLLIN, until_ms));
  }
  (void)close(fd);
}

void mk_group_free(mk_group *group) {
  const uint64_t until = mk_group_now_ms() + HANG_UP_MS;
  if (group == NULL) {
    return;
  }
  end_ticks(group);
  for (uint32_t r = 0; r < MK_GPU_MOST_RANKS; r++) {
    if (group->peers[r].fd >= 0) {
      hang_up(group->peers[r].fd, until);
    }
  }
  (void)pthread_mutex_destroy(&group->sending);
  mk_free(group);
}
