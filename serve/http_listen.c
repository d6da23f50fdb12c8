/* See http.h. Where the server listens: TCP addresses of a host, and a unix socket. */
#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "serve/http_internal.h"

/* ---- Accepting, when there are no file descriptors left ---- */

static void accept_again(evutil_socket_t fd, short what, void *user) {
  (void)fd, (void)what;
  mk_http *http = user;
  for (size_t i = 0; i < http->listener_count; i++) {
    evconnlistener_enable(evhttp_bound_socket_get_listener(http->listeners[i]));
  }
}

/* Leaves waiting connections in the kernel's queue for a moment: otherwise the loop would try again at once. */
static void cannot_accept(struct evconnlistener *listener, void *user) {
  (void)user; /* evhttp */
  const struct timeval moment = {.tv_usec = 50000};
  if (mk_http_running != NULL && event_add(mk_http_running->accept_again, &moment) == 0) {
    evconnlistener_disable(listener);
  }
}

static mk_status accept_from(mk_http *http, int fd) {
  struct evhttp_bound_socket *listener = evhttp_accept_socket_with_handle(http->evhttp, fd);
  if (listener == NULL) {
    return mk_error(MK_ERR_RUNTIME, "Out of memory to listen");
  }
  evconnlistener_set_error_cb(evhttp_bound_socket_get_listener(listener), cannot_accept);
  http->listeners[http->listener_count++] = listener;
  return MK_OK;
}

/* ---- TCP ---- */

/* A socket that is bound to the address `ai` and to http->port; -1 with errno. */
static int bind_tcp(const mk_http *http, const struct addrinfo *ai, bool alone) {
  const int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return -1;
  }
  struct sockaddr_storage address;
  memcpy(&address, ai->ai_addr, ai->ai_addrlen);
  const int on = 1, v6_only = !alone; /* "::" by itself takes IPv4, too */
  if (ai->ai_family == AF_INET6) {
    ((struct sockaddr_in6 *)&address)->sin6_port = htons(http->port);
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only);
  } else {
    ((struct sockaddr_in *)&address)->sin_port = htons(http->port);
  }
  /* Connections that are accepted have what their listener has. */
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
      bind(fd, (const struct sockaddr *)&address, ai->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
    const int kept = errno;
    close(fd);
    errno = kept;
    return -1;
  }
  return fd;
}

static mk_status learn_port(mk_http *http, int fd) {
  struct sockaddr_storage address;
  socklen_t size = sizeof address;
  if (getsockname(fd, (struct sockaddr *)&address, &size) != 0) {
    return mk_error(MK_ERR_RUNTIME, "Cannot learn which port it is: %s", strerror(errno));
  }
  http->port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                   : ((struct sockaddr_in *)&address)->sin_port);
  return MK_OK;
}

static mk_status cannot_listen(const mk_http *http, const char *host) {
  const char *advice = errno == EADDRINUSE      ? "; something listens there: end it, or take another port"
                       : errno == EACCES        ? "; ports below 1024 need a privilege: take another port"
                       : errno == EADDRNOTAVAIL ? "; no interface of this machine has this address"
                                                : "";
  return mk_error(MK_ERR_RUNTIME, "Cannot listen on %s, port %u: %s%s", host, http->port, strerror(errno), advice);
}

/* On every address of the host, as "localhost" may have two; one that the machine does not have is left out, and so is
 * one whose port is taken when the port is any free one, found with the first address. */
static mk_status listen_on(mk_http *http, const char *host, const struct addrinfo *list) {
  const bool any_port = http->port == 0;
  for (const struct addrinfo *ai = list; ai != NULL && http->listener_count < MK_HTTP_LISTENERS; ai = ai->ai_next) {
    const int fd = bind_tcp(http, ai, list->ai_next == NULL);
    if (fd < 0 && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL || (any_port && http->listener_count > 0)) &&
        (ai->ai_next != NULL || http->listener_count > 0)) {
      continue;
    }
    if (fd < 0) {
      return cannot_listen(http, host);
    }
    mk_status status = http->port == 0 ? learn_port(http, fd) : MK_OK;
    status = status != MK_OK ? status : accept_from(http, fd);
    if (status != MK_OK) {
      close(fd);
      return status;
    }
  }
  return MK_OK;
}

static mk_status listen_tcp(mk_http *http) {
  const struct addrinfo hints = {
      .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
  struct addrinfo *list;
  const int result = getaddrinfo(http->options.host, "0", &hints, &list);
  if (result != 0) {
    return mk_error(MK_ERR_RUNTIME, "Cannot find the address of host '%s': %s; give an address or another name",
                    http->options.host, result == EAI_SYSTEM ? strerror(errno) : gai_strerror(result));
  }
  http->port = http->options.port;
  const mk_status status = listen_on(http, http->options.host, list);
  freeaddrinfo(list);
  return status;
}

/* ---- A unix socket ---- */

/* Makes room for the socket file: what is there may only be a socket that nobody answers. */
static mk_status clear_path(const char *path, const struct sockaddr_un *address) {
  struct stat found;
  if (lstat(path, &found) != 0) {
    return errno == ENOENT ? MK_OK : mk_error(MK_ERR_RUNTIME, "Cannot look at '%s': %s", path, strerror(errno));
  }
  if (!S_ISSOCK(found.st_mode)) {
    return mk_error(MK_ERR_RUNTIME, "Cannot listen on '%s': it is there, and is no socket; give another path", path);
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return mk_error(MK_ERR_RUNTIME, "Cannot make a socket: %s", strerror(errno));
  }
  const bool answers = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 || errno == EAGAIN;
  const int why = errno;
  close(fd);
  if (answers) {
    return mk_error(MK_ERR_RUNTIME, "Cannot listen on '%s': another process does; end it, or give another path", path);
  }
  if (why != ECONNREFUSED) {
    return mk_error(MK_ERR_RUNTIME, "Cannot tell whether anybody listens on '%s': %s", path, strerror(why));
  }
  return unlink(path) == 0 || errno == ENOENT
             ? MK_OK
             : mk_error(MK_ERR_RUNTIME, "Cannot remove the old socket '%s': %s", path, strerror(errno));
}

static mk_status bind_unix(mk_http *http, const char *path, const struct sockaddr_un *address, int fd) {
  if (bind(fd, (const struct sockaddr *)address, sizeof *address) != 0) {
    return mk_error(MK_ERR_RUNTIME, "Cannot listen on '%s': %s", path, strerror(errno));
  }
  struct stat made;
  if (lstat(path, &made) == 0) {
    MK_TRY(mk_strdup(path, &http->unix_path));
    http->unix_device = made.st_dev;
    http->unix_inode = made.st_ino;
  }
  if (listen(fd, SOMAXCONN) != 0) {
    return mk_error(MK_ERR_RUNTIME, "Cannot listen on '%s': %s", path, strerror(errno));
  }
  return accept_from(http, fd);
}

static mk_status listen_unix(mk_http *http) {
  const char *path = http->options.unix_path;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (*path == '\0' || strlen(path) >= sizeof address.sun_path) {
    return mk_error(MK_ERR_USAGE, "A unix socket's path has 1 to %zu bytes, and '%s' has %zu: give another",
                    sizeof address.sun_path - 1, path, strlen(path));
  }
  memcpy(address.sun_path, path, strlen(path) + 1);
  MK_TRY(clear_path(path, &address));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return mk_error(MK_ERR_RUNTIME, "Cannot make a socket: %s", strerror(errno));
  }
  const mk_status status = bind_unix(http, path, &address, fd);
  if (status != MK_OK) {
    close(fd);
  }
  return status;
}

mk_status mk_http_listen(mk_http *http) {
  http->accept_again = event_new(http->base, -1, 0, accept_again, http);
  if (http->accept_again == NULL) {
    return mk_error(MK_ERR_RUNTIME, "Out of memory for the server's events");
  }
  MK_TRY(http->options.host == NULL ? MK_OK : listen_tcp(http));
  return http->options.unix_path == NULL ? MK_OK : listen_unix(http);
}

void mk_http_listen_no_more(mk_http *http) {
  while (http->listener_count > 0) {
    evhttp_del_accept_socket(http->evhttp, http->listeners[--http->listener_count]);
  }
  struct stat found;
  if (http->unix_path != NULL && lstat(http->unix_path, &found) == 0 && found.st_dev == http->unix_device &&
      found.st_ino == http->unix_inode) {
    unlink(http->unix_path);
  }
  mk_free(http->unix_path);
  http->unix_path = NULL;
}
