// The least a relay can do in any language: one epoll, one read, one write. As bare-relay, which is in Python.
//   gcc -O2 -o relay scripts/bench/bare_relay.c && scripts/bench/proxy --bare ./relay --streams 256
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
static int other[65536];
static void add(int ep, int fd) { struct epoll_event e = {.events = EPOLLIN, .data.fd = fd}; epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e); }
int main(int argc, char **argv) {
  int one = 1, l = socket(AF_INET, SOCK_STREAM, 0), ep = epoll_create1(0);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  a.sin_port = htons(atoi(argv[1])); if (bind(l, (void *)&a, sizeof a) || listen(l, 8192)) return 1;
  a.sin_port = htons(atoi(argv[2])); add(ep, l);
  static char buf[16384]; struct epoll_event ev[512];
  for (;;) {
    int n = epoll_wait(ep, ev, 512, -1);
    for (int i = 0; i < n; i++) {
      int fd = ev[i].data.fd;
      if (fd == l) {
        int c = accept(l, 0, 0), s = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(s, (void *)&a, sizeof a)) return 2;
        setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(c, F_SETFL, O_NONBLOCK); fcntl(s, F_SETFL, O_NONBLOCK);
        other[c] = s; other[s] = c; add(ep, c); add(ep, s);
        continue;
      }
      if (!other[fd]) continue;
      ssize_t k = read(fd, buf, sizeof buf);
      if (k > 0) { if (write(other[fd], buf, k) < 0) {} }
      else { int o = other[fd]; other[fd] = other[o] = 0; close(fd); close(o); }
    }
  }
}
