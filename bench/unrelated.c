// SPDX-License-Identifier: Apache-2.0
/* A process that nobody watches, on one processor. `unrelated CPU FILE` (a cached file of 1 MiB
 * or more) reads lines `WORK COUNT` from stdin, does each, and answers with nanoseconds per
 * operation by the clock and of processor time, and when it began and ended (CLOCK_MONOTONIC).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1 << 20)
#define PAGE 4096
#define ODD_MAX 1000	   /* rounds of other work than was asked for */
#define AROUND (16 * PAGE) /* a fault on a cached file maps as much around it */

static int file_fd, socket_fd;
static char buffer[128 << 10];

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

/* Of this process and of its children that ended. */
static double cpu_ns(void)
{
	struct rusage ended;
	struct timespec own;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
	getrusage(RUSAGE_CHILDREN, &ended);
	return (own.tv_sec + ended.ru_utime.tv_sec + ended.ru_stime.tv_sec) * 1e9 + own.tv_nsec +
	       (ended.ru_utime.tv_usec + ended.ru_stime.tv_usec) * 1e3;
}

static long read_at(size_t size, long count)
{
	long began = now_ns();

	for (long i = 0; i < count; i++)
		if (pread(file_fd, buffer, size, i * size % MIB) != (ssize_t)size)
			die("pread");
	return now_ns() - began;
}

static long empty_syscall(long count)
{
	long began = now_ns();

	for (long i = 0; i < count; i++)
		syscall(SYS_getppid);
	return now_ns() - began;
}

static long read_1(long count)
{
	return read_at(1, count);
}

static long read_4k(long count)
{
	return read_at(PAGE, count);
}

static long read_128k(long count)
{
	return read_at(sizeof(buffer), count);
}

static long faults(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return used.ru_minflt;
}

/* Touch each `stride` of a mapping of one MiB, again and again, until there were `count` faults;
 * mapping and unmapping do not count. Where the host put pages out meanwhile, or mapped other
 * amounts at once, it was another work: it is done again.
 */
static long touch(long count, int fd, int flags, long stride)
{
	long took = 0, done = 0, wanted = MIB / stride, other = 0;

	while (done < count) {
		char *map = mmap(NULL, MIB, PROT_READ | PROT_WRITE, flags, fd, 0);
		long before = faults(), began, spent;

		if (map == MAP_FAILED)
			die("mmap");
		madvise(map, MIB, MADV_NOHUGEPAGE);
		began = now_ns();
		for (long at = 0; at < MIB; at += stride) {
			if (fd < 0)
				map[at] = 1;
			else
				(void)*(volatile char *)(map + at);
		}
		spent = now_ns() - began;
		munmap(map, MIB);
		if (faults() - before < wanted || faults() - before > wanted + 4) {
			if (++other > ODD_MAX)
				die("faults");
			continue;
		}
		took += spent;
		done += wanted;
	}
	return took * count / done;
}

static long anonymous_fault(long count)
{
	return touch(count, -1, MAP_PRIVATE | MAP_ANONYMOUS, PAGE);
}

static long file_fault(long count)
{
	return touch(count, file_fd, MAP_PRIVATE, AROUND);
}

static long tcp_message(long count)
{
	long began = now_ns();

	for (long i = 0; i < count; i++) {
		if (send(socket_fd, buffer, 64, 0) != 64)
			die("send");
		if (recv(socket_fd, buffer, 64, MSG_WAITALL) != 64)
			die("recv");
	}
	return now_ns() - began;
}

static long fork_exec(long count)
{
	long began = now_ns();

	for (long i = 0; i < count; i++) {
		pid_t pid = fork();
		int status;

		if (pid == 0) {
			execl("/bin/true", "true", NULL);
			_exit(1);
		}
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
			die("fork and exec");
	}
	return now_ns() - began;
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

	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(listener, (void *)&addr, len) || listen(listener, 1))
		die("listen");
	getsockname(listener, (void *)&addr, &len);
	pthread_create(&thread, NULL, echo, &listener);
	socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(socket_fd, (void *)&addr, len))
		die("connect");
	setsockopt(socket_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static const struct {
	const char *name;
	long (*work)(long count);
} works[] = {
	{"empty_syscall", empty_syscall}, {"read_1", read_1},	      {"read_4k", read_4k},
	{"read_128k", read_128k},	  {"fault", anonymous_fault}, {"file_fault", file_fault},
	{"tcp_message", tcp_message},	  {"fork_exec", fork_exec},
};

static void answer(const char *name, long count)
{
	for (unsigned i = 0; i < sizeof(works) / sizeof(*works); i++) {
		double cpu = cpu_ns();
		long began = now_ns(), took;

		if (strcmp(works[i].name, name))
			continue;
		took = works[i].work(count);
		cpu = cpu_ns() - cpu;
		printf("%.3f %.3f %ld %ld\n", (double)took / count, cpu / count, began, now_ns());
		return;
	}
	printf("unknown\n");
}

static void stay_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity");
}

int main(int argc, char **argv)
{
	char name[64];
	long count;

	file_fd = argc == 3 ? open(argv[2], O_RDONLY | O_CLOEXEC) : -1;
	if (file_fd < 0) {
		fprintf(stderr, "usage: unrelated CPU FILE\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IONBF, 0);
	stay_on(atoi(argv[1]));
	connect_echo();
	while (scanf("%63s %ld", name, &count) == 2)
		answer(name, count);
	return 0;
}
