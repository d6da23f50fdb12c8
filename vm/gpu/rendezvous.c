/* How the processes of a group find each other: rank 0 listens, the others connect and say who they are, and when all
 * are there, and fit together, rank 0 answers. See group_internal.h.
 *
 *   another rank -> rank 0   greeting, member
 *   rank 0 -> another rank   greeting, answer
 *
 * Anybody may connect to the port. Who does not say the greeting is a stranger, and is sent away; who says nothing is
 * waited for beside all others. A rank that does not fit ends the meeting for all of them, with the reason. */
#define _GNU_SOURCE /* accept4 */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "vm/gpu/group_internal.h"

enum { PROTOCOL = 1, MOST_GUESTS = 32, RETRY_MS = 50, GRACE_MS = 2000, LATER_MS = 5000 };

typedef struct greeting {
  char magic[8];
  uint32_t protocol, bytes; /* bytes: that follow */
} greeting;

typedef struct answer {
  int32_t status;
  char why[MK_GROUP_WHY]; /* where the status is not MK_OK */
  mk_group_member leader;
  mk_nccl_id id;
} answer;

static const char kMagic[8] = "mkvmrank";

typedef struct guest { /* who has connected, and has not said all yet */
  int fd;
  size_t have;
  struct {
    greeting hello;
    mk_group_member who;
  } said;
} guest;

typedef struct meeting {
  mk_group *group;
  const char *address;
  const mk_group_member *own;
  int listener;
  guest guests[MOST_GUESTS];
  size_t guest_count;
  uint32_t strangers, here; /* here: ranks that have come, this one too */
  uint64_t until_ms;
} meeting;

static void close_fd(int *fd) {
  if (*fd >= 0) {
    (void)close(*fd);
  }
  *fd = -1;
}

static void name_peer(mk_group_peer *peer) {
  snprintf(peer->name, sizeof peer->name, "rank %u (%.63s, process %u)", peer->who.rank, peer->who.host, peer->who.pid);
}

static mk_status check_cancel(const mk_group *group) {
  return group->cancel == NULL || *group->cancel == 0
             ? MK_OK
             : mk_error(MK_ERR_RUNTIME, "interrupted while it waited for the other ranks");
}

/* ---- The address ---- */

static mk_status look_up(const char *address, struct addrinfo **out) {
  char host[256];
  const char *colon = strrchr(address, ':');
  const char *start = address;
  size_t length = colon == NULL ? 0 : (size_t)(colon - address);
  if (length >= 2 && address[0] == '[' && address[length - 1] == ']') {
    start++;
    length -= 2;
  }
  if (length == 0 || length >= sizeof host || colon[1] == '\0' ||
      strspn(colon + 1, "0123456789") != strlen(colon + 1)) {
    return mk_error(MK_ERR_USAGE, "the rendezvous \"%s\" is no HOST:PORT, such as 127.0.0.1:29500", address);
  }
  memcpy(host, start, length);
  host[length] = '\0';
  const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
  const int failed = getaddrinfo(host, colon + 1, &hints, out);
  return failed == 0 ? MK_OK : mk_error(MK_ERR_RUNTIME, "the rendezvous %s: %s", address, gai_strerror(failed));
}

static int new_socket(const struct addrinfo *at) {
  return socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
}

/* ---- Rank 0 ---- */

static mk_status listen_at(meeting *m, const struct addrinfo *at) {
  const int on = 1;
  m->listener = new_socket(at);
  if (m->listener >= 0 && setsockopt(m->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      bind(m->listener, at->ai_addr, at->ai_addrlen) == 0 && listen(m->listener, MOST_GUESTS) == 0) {
    return MK_OK;
  }
  const int failed = errno;
  close_fd(&m->listener);
  return mk_error(MK_ERR_RUNTIME, "rank 0 cannot listen at %s: %s; %s", m->address, strerror(failed),
                  failed == EADDRINUSE      ? "somebody else does, maybe another run: choose another port"
                  : failed == EADDRNOTAVAIL ? "the address has to be one of this host"
                                            : "choose another address");
}

static void drop_guest(meeting *m, size_t index) { m->guests[index] = m->guests[--m->guest_count]; }

static void accept_guests(meeting *m) {
  for (int fd; (fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
    if (m->guest_count == MOST_GUESTS) { /* the one that has been silent for longest makes room */
      (void)close(m->guests[0].fd);
      memmove(m->guests, m->guests + 1, (MOST_GUESTS - 1) * sizeof m->guests[0]);
      m->guest_count--;
      m->strangers++;
    }
    m->guests[m->guest_count++] = (guest){.fd = fd};
  }
}

static const mk_group_member *find_gpu(const meeting *m, const mk_group_member *who) {
  for (uint32_t r = 0; r < m->group->ranks; r++) {
    const mk_group_member *other = r == 0 ? m->own : &m->group->peers[r].who;
    if ((r == 0 || m->group->peers[r].fd >= 0) && memcmp(other->uuid, who->uuid, sizeof who->uuid) == 0) {
      return other;
    }
  }
  return NULL;
}

/* Whether the rank that has come belongs to this model, here. */
static mk_status check_member(const meeting *m, const mk_group_member *who, const char *name) {
  const mk_group_member *own = m->own;
  if (strcmp(who->version, own->version) != 0) {
    return mk_error(MK_ERR_USAGE, "%s is of mkvm %s, and rank 0 of %s; start the same one everywhere", name,
                    who->version, own->version);
  }
  if (who->ranks != own->ranks) {
    return mk_error(MK_ERR_USAGE, "%s was started with --ranks %u, and rank 0 with --ranks %u", name, who->ranks,
                    own->ranks);
  }
  if (who->rank == 0 || who->rank >= own->ranks) {
    return mk_error(MK_ERR_USAGE, "%s: %s", name,
                    who->rank == 0 ? "there is a rank 0 already, that listens; each rank is started once"
                                   : "the ranks are counted from 0, so there is no such one");
  }
  if (m->group->peers[who->rank].fd >= 0) {
    return mk_error(MK_ERR_USAGE, "%s has come twice: %s is there already; each rank is started once", name,
                    m->group->peers[who->rank].name);
  }
  if (strcmp(who->boot, own->boot) != 0) {
    return mk_error(MK_ERR_USAGE, "%s is on another host than rank 0 (%s); the GPUs of a model are those of one host",
                    name, own->host);
  }
  if (who->model != own->model) {
    return mk_error(MK_ERR_USAGE,
                    "%s has another program or other weights than rank 0; start all ranks with the same model, prompt "
                    "and options",
                    name);
  }
  if (who->nccl != own->nccl) {
    return mk_error(MK_ERR_USAGE, "%s has NCCL %d.%d.%d, and rank 0 %d.%d.%d; the ranks need the same one", name,
                    who->nccl / 10000, who->nccl / 100 % 100, who->nccl % 100, own->nccl / 10000, own->nccl / 100 % 100,
                    own->nccl % 100);
  }
  const mk_group_member *other = find_gpu(m, who);
  return other == NULL ? MK_OK
                       : mk_error(MK_ERR_USAGE, "%s has the GPU of rank %u (%s, cuda:%u); each rank needs its own",
                                  name, other->rank, other->gpu, other->device);
}

static void end_texts(mk_group_member *who) {
  who->version[sizeof who->version - 1] = who->host[sizeof who->host - 1] = '\0';
  who->boot[sizeof who->boot - 1] = who->gpu[sizeof who->gpu - 1] = '\0';
}

/* Makes a rank of the guest that has said all, or fails. */
static mk_status admit(meeting *m, size_t index) {
  guest *g = &m->guests[index];
  mk_group_peer peer = {.fd = g->fd, .who = g->said.who, .heard_ms = mk_group_now_ms()};
  end_texts(&peer.who);
  name_peer(&peer);
  const mk_status status = check_member(m, &peer.who, peer.name);
  if (status == MK_OK) {
    m->group->peers[peer.who.rank] = peer;
    m->here++;
    drop_guest(m, index);
  }
  return status;
}

/* Hears what a guest says; *gone: it has left, or is a stranger. */
static mk_status hear_guest(meeting *m, size_t index, bool *gone) {
  guest *g = &m->guests[index];
  const ssize_t got = recv(g->fd, (uint8_t *)&g->said + g->have, sizeof g->said - g->have, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return MK_OK;
  }
  g->have += got > 0 ? (size_t)got : 0;
  const size_t magic = g->have < sizeof kMagic ? g->have : sizeof kMagic;
  *gone = got <= 0 || memcmp(g->said.hello.magic, kMagic, magic) != 0;
  if (*gone || g->have < sizeof g->said.hello) {
    return MK_OK;
  }
  if (g->said.hello.protocol != PROTOCOL || g->said.hello.bytes != sizeof g->said.who) {
    return mk_error(MK_ERR_USAGE, "a rank of another mkvm has come to %s; start the same one everywhere", m->address);
  }
  return g->have == sizeof g->said ? admit(m, index) : MK_OK;
}

static mk_status hear_guests(meeting *m) {
  for (size_t i = m->guest_count; i-- > 0;) {
    bool gone = false;
    MK_TRY(hear_guest(m, i, &gone));
    if (gone) {
      (void)close(m->guests[i].fd);
      drop_guest(m, i);
      m->strangers++;
    }
  }
  return MK_OK;
}

/* A rank that has come says nothing more before it is answered. */
static mk_status find_gone(const meeting *m) {
  for (uint32_t r = 1; r < m->group->ranks; r++) {
    char byte;
    const mk_group_peer *peer = &m->group->peers[r];
    if (peer->fd < 0) {
      continue;
    }
    const ssize_t got = recv(peer->fd, &byte, 1, MSG_PEEK);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      return mk_error(MK_ERR_RUNTIME, "%s was gone before all ranks had come", peer->name);
    }
  }
  return MK_OK;
}

static mk_status tell_missing(const meeting *m) {
  char missing[64] = "";
  size_t n = 0;
  for (uint32_t r = 1; r < m->group->ranks; r++) {
    if (m->group->peers[r].fd < 0) {
      n += (size_t)snprintf(missing + n, sizeof missing - n, "%s%u", n == 0 ? "" : ", ", r);
    }
  }
  char others[64] = "";
  if (m->strangers + m->guest_count != 0) {
    snprintf(others, sizeof others, " (%zu that came there were no ranks)", m->strangers + m->guest_count);
  }
  return mk_error(MK_ERR_RUNTIME, "rank %s did not come to %s within %llu s%s; each rank has to be started", missing,
                  m->address, (unsigned long long)(m->group->deadline_ms / 1000), others);
}

/* Sleeps until somebody says something, or for a while. */
static void wait_for_guests(const meeting *m) {
  struct pollfd fds[1 + MOST_GUESTS];
  nfds_t count = 0;
  fds[count++] = (struct pollfd){.fd = m->listener, .events = POLLIN};
  for (size_t i = 0; i < m->guest_count; i++) {
    fds[count++] = (struct pollfd){.fd = m->guests[i].fd, .events = POLLIN};
  }
  (void)poll(fds, count, MK_GROUP_LOOK_MS);
}

static mk_status gather(meeting *m) {
  while (m->here < m->group->ranks) {
    wait_for_guests(m);
    accept_guests(m);
    MK_TRY(hear_guests(m));
    MK_TRY(find_gone(m));
    MK_TRY(check_cancel(m->group));
    if (mk_group_now_ms() > m->until_ms) {
      return tell_missing(m);
    }
  }
  return MK_OK;
}

static mk_status answer_peer(int fd, const answer *a, uint64_t until_ms) {
  greeting hello = {.protocol = PROTOCOL, .bytes = sizeof *a};
  memcpy(hello.magic, kMagic, sizeof kMagic);
  MK_TRY(mk_group_put(fd, &hello, sizeof hello, until_ms));
  return mk_group_put(fd, a, sizeof *a, until_ms);
}

/* Tells all ranks that they have met. */
static mk_status begin_all(meeting *m) {
  const answer a = {.leader = *m->own, .id = m->group->id};
  for (uint32_t r = 1; r < m->group->ranks; r++) {
    mk_group_peer *peer = &m->group->peers[r];
    if (answer_peer(peer->fd, &a, m->until_ms + GRACE_MS) != MK_OK) {
      return mk_error_prefix(MK_ERR_RUNTIME, "%s", peer->name);
    }
  }
  return MK_OK;
}

/* Tells those guests who have begun to say who they are why the meeting failed; *told counts them. */
static void refuse_guests(meeting *m, const answer *a, uint32_t *told) {
  for (size_t i = m->guest_count; i-- > 0;) {
    guest *g = &m->guests[i];
    const ssize_t got = recv(g->fd, (uint8_t *)&g->said + g->have, sizeof g->said - g->have, 0);
    g->have += got > 0 ? (size_t)got : 0;
    if (g->have >= sizeof kMagic && memcmp(g->said.hello.magic, kMagic, sizeof kMagic) == 0) {
      *told += answer_peer(g->fd, a, 0) == MK_OK;
      (void)shutdown(g->fd, SHUT_WR);
      (void)close(g->fd);
      drop_guest(m, i);
    }
  }
}

/* Tells everybody why the meeting failed, also those who come a little later: so all ranks end with the same reason. */
static mk_status refuse_all(meeting *m, mk_status status) {
  answer a = {.status = (int32_t)status, .leader = *m->own};
  uint32_t told = 0;
  const uint64_t now = mk_group_now_ms();
  const uint64_t until = m->until_ms > now && m->until_ms < now + LATER_MS ? m->until_ms : now + LATER_MS;
  snprintf(a.why, sizeof a.why, "%s", mk_error_message());
  for (uint32_t r = 1; r < m->group->ranks; r++) {
    told += m->group->peers[r].fd >= 0 && answer_peer(m->group->peers[r].fd, &a, 0) == MK_OK;
  }
  const bool late = now >= m->until_ms; /* who has not come by now will not */
  for (;;) {
    refuse_guests(m, &a, &told);
    if (told + 1 >= m->group->ranks || late || mk_group_now_ms() >= until || check_cancel(m->group) != MK_OK) {
      break;
    }
    wait_for_guests(m);
    accept_guests(m);
  }
  return mk_error(status, "%s", a.why);
}

/* NCCL listens for its ranks from here on. */
static mk_status make_id(meeting *m) {
  const mk_nccl *nccl;
  MK_TRY(mk_nccl_open(&nccl));
  return mk_nccl_check(nccl, nccl->get_id(&m->group->id), "asking for NCCL's unique id");
}

static mk_status lead(meeting *m, const struct addrinfo *at) {
  MK_TRY(listen_at(m, at));
  m->here = 1;
  mk_status status = gather(m);
  status = status == MK_OK ? make_id(m) : status;
  status = status == MK_OK ? begin_all(m) : refuse_all(m, status);
  for (; m->guest_count > 0; m->guest_count--) {
    (void)close(m->guests[m->guest_count - 1].fd);
  }
  close_fd(&m->listener);
  return status;
}

/* ---- Another rank ---- */

static void sleep_ms(uint32_t ms) {
  const struct timespec time = {.tv_nsec = (long)ms * 1000000};
  (void)nanosleep(&time, NULL);
}

/* One attempt; *fd stays -1 where nobody answers. */
static void try_to_connect(const struct addrinfo *at, int *fd) {
  *fd = new_socket(at);
  if (*fd < 0 || connect(*fd, at->ai_addr, at->ai_addrlen) == 0) {
    return;
  }
  struct pollfd p = {.fd = *fd, .events = POLLOUT};
  int failed = errno;
  socklen_t size = sizeof failed;
  if (failed == EINPROGRESS && poll(&p, 1, 1000) == 1 && getsockopt(*fd, SOL_SOCKET, SO_ERROR, &failed, &size) == 0 &&
      failed == 0) {
    return;
  }
  close_fd(fd);
}

/* A port that nobody listens at can connect to itself. */
static bool is_own(int fd) {
  struct sockaddr_storage here = {0}, there = {0};
  socklen_t a = sizeof here, b = sizeof there;
  return getsockname(fd, (struct sockaddr *)&here, &a) == 0 && getpeername(fd, (struct sockaddr *)&there, &b) == 0 &&
         a == b && memcmp(&here, &there, a) == 0;
}

static mk_status connect_to(meeting *m, const struct addrinfo *at) {
  int *fd = &m->group->peers[0].fd;
  while (*fd < 0) {
    MK_TRY(check_cancel(m->group));
    if (mk_group_now_ms() > m->until_ms) {
      return mk_error(MK_ERR_RUNTIME, "rank 0 does not listen at %s (waited %llu s for it); start it there, too",
                      m->address, (unsigned long long)(m->group->deadline_ms / 1000));
    }
    try_to_connect(at, fd);
    if (*fd >= 0 && is_own(*fd)) {
      close_fd(fd);
    }
    if (*fd < 0) {
      sleep_ms(RETRY_MS);
    }
  }
  return MK_OK;
}

/* Reads rank 0's answer, as much of it as comes. */
static mk_status take_answer(meeting *m, answer *a) {
  struct {
    greeting hello;
    answer a;
  } said;
  const int fd = m->group->peers[0].fd;
  const uint64_t until = m->until_ms + GRACE_MS; /* rank 0's own message comes first */
  for (size_t have = 0; have < sizeof said;) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    (void)poll(&p, 1, MK_GROUP_LOOK_MS);
    const ssize_t got = recv(fd, (uint8_t *)&said + have, sizeof said - have, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      return mk_error(MK_ERR_RUNTIME, "rank 0, or whoever listens at %s, was gone before all ranks had come",
                      m->address);
    }
    have += got > 0 ? (size_t)got : 0;
    if (have >= sizeof kMagic && memcmp(said.hello.magic, kMagic, sizeof kMagic) != 0) {
      return mk_error(MK_ERR_RUNTIME, "who listens at %s is not rank 0 of mkvm; choose another port", m->address);
    }
    if (have >= sizeof said.hello && (said.hello.protocol != PROTOCOL || said.hello.bytes != sizeof said.a)) {
      return mk_error(MK_ERR_USAGE, "rank 0 at %s is of another mkvm; start the same one everywhere", m->address);
    }
    MK_TRY(check_cancel(m->group));
    if (mk_group_now_ms() > until) {
      return mk_error(MK_ERR_RUNTIME, "who listens at %s has not answered for %llu s; is it rank 0?", m->address,
                      (unsigned long long)((until - m->until_ms + m->group->deadline_ms) / 1000));
    }
  }
  *a = said.a;
  return MK_OK;
}

static mk_status follow(meeting *m, const struct addrinfo *at) {
  answer a = {0};
  greeting hello = {.protocol = PROTOCOL, .bytes = sizeof *m->own};
  memcpy(hello.magic, kMagic, sizeof kMagic);
  MK_TRY(connect_to(m, at));
  mk_status sent = mk_group_put(m->group->peers[0].fd, &hello, sizeof hello, m->until_ms);
  sent = sent == MK_OK ? mk_group_put(m->group->peers[0].fd, m->own, sizeof *m->own, m->until_ms) : sent;
  const mk_status status = take_answer(m, &a); /* even if that failed: it may say why */
  MK_TRY(status != MK_OK ? status : sent);
  a.why[sizeof a.why - 1] = '\0';
  if (a.status != MK_OK) {
    return mk_error((mk_status)a.status, "%s", a.why);
  }
  mk_group_peer *leader = &m->group->peers[0];
  leader->who = a.leader;
  end_texts(&leader->who);
  leader->heard_ms = mk_group_now_ms();
  name_peer(leader);
  m->group->id = a.id;
  return MK_OK;
}

mk_status mk_group_meet(mk_group *group, const char *address, const mk_group_member *own) {
  struct addrinfo *at = NULL;
  meeting m = {.group = group, .address = address, .own = own, .listener = -1};
  m.until_ms = mk_group_now_ms() + group->deadline_ms;
  MK_TRY(look_up(address, &at));
  mk_status status = group->rank == 0 ? lead(&m, at) : follow(&m, at);
  freeaddrinfo(at);
  return status;
}
