// SPDX-License-Identifier: Apache-2.0
/* A process that nobody watches. `unrelated FILE` (a cached file of 1 MiB or more) reads names
 * of works from stdin, does each, and answers with nanoseconds per operation.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MIB (1 << 20)
#define PAGE 4096

static int file_fd, socket_fd;
static char buffer[128 << 10];

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static void read_at(size_t size, long i)
{
	if (pread(file_fd, buffer, size, i * size % MIB) != (ssize_t)size)
		die("pread");
}

static void empty_syscall(long count)
{
	for (long i = 0; i < count; i++)
		syscall(SYS_getppid);
}

static void read_1(long count)
{
	for (long i = 0; i < count; i++)
		read_at(1, i);
}

static void read_4k(long count)
{
	for (long i = 0; i < count; i++)
		read_at(PAGE, i);
}

static void read_128k(long count)
{
	for (long i = 0; i < count; i++)
		read_at(sizeof(buffer), i);
}

static void fault(long count)
{
	char *map = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			 -1, 0);

	if (map == MAP_FAILED)
		die("mmap");
	madvise(map, count * PAGE, MADV_NOHUGEPAGE);
	for (long i = 0; i < count; i++)
		map[i * PAGE] = 1;
	munmap(map, count * PAGE);
}

static void tcp_message(long count)
{
	for (long i = 0; i < count; i++) {
		if (send(socket_fd, buffer, 64, 0) != 64)
			die("send");
		if (recv(socket_fd, buffer, 64, MSG_WAITALL) != 64)
			die("recv");
	}
}

static void *echo(void *listener)
{
	int fd = accept(*(int *)listener, NULL, NULL), one = 1;
	char message[64];

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	while (recv(fd, message, sizeof(message), MSG_WAITALL) == sizeof(message))
		if (send(fd, message, sizeof(message), 0) != sizeof(message))
			die("echo");
	return NULL;
}

static void connect_echo(void)
{
	struct sockaddr_in addr = {.sin_family = AF_INET,
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(addr);
	static int listener;
	pthread_t thread;
	int one = 1;

	listener = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (void *)&addr, len) || listen(listener, 1))
		die("listen");
	getsockname(listener, (void *)&addr, &len);
	pthread_create(&thread, NULL, echo, &listener);
	socket_fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(socket_fd, (void *)&addr, len))
		die("connect");
	setsockopt(socket_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static const struct {
	const char *name;
	void (*work)(long count);
	long count;
} works[] = {
	{"empty_syscall", empty_syscall, 200000},
	{"read_1", read_1, 60000},
	{"read_4k", read_4k, 40000},
	{"read_128k", read_128k, 5000},
	{"fault", fault, 20000},
	{"tcp_message", tcp_message, 1500},
};

static void answer(const char *name)
{
	for (unsigned i = 0; i < sizeof(works) / sizeof(*works); i++) {
		double began = now_ns();

		if (strcmp(works[i].name, name))
			continue;
		works[i].work(works[i].count);
		printf("%.3f\n", (now_ns() - began) / works[i].count);
		return;
	}
	printf("nan\n");
}

int main(int argc, char **argv)
{
	char line[64];

	file_fd = argc == 2 ? open(argv[1], O_RDONLY) : -1;
	if (file_fd < 0) {
		fprintf(stderr, "usage: unrelated FILE\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IONBF, 0);
	connect_echo();
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		answer(line);
	}
	return 0;
}
