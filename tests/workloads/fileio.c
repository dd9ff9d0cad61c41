// SPDX-License-Identifier: Apache-2.0
/* File work with known answers. `fileio WHAT N SIZE FILE...` says "ready", waits for a line,
 * works, says in one JSON line what it did by its own count, waits for a line, ends.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long count, size;
static char **files;
static int file_count;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void wait_line(void)
{
	char line[16];

	if (!fgets(line, sizeof(line), stdin))
		exit(1);
}

static int open_file(int i, int flags)
{
	int fd = open(files[i], O_RDONLY | flags);

	if (fd < 0)
		die(files[i]);
	return fd;
}

static long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000l + t.tv_nsec;
}

static long one_read(int fd, char *buffer, long i)
{
	struct iovec parts[2] = {{buffer, 1}, {buffer + 1, size - 1}};

	switch (i % 5) {
	case 0:
		return pread(fd, buffer, size, i * size);
	case 1:
		return read(fd, buffer, size);
	case 2:
		return readv(fd, parts, 2);
	case 3:
		return preadv(fd, parts, 2, i * size);
	}
	return preadv2(fd, parts, 2, i * size, 0);
}

static void reads(void)
{
	char *buffer = malloc(size);
	long total = 0;
	int fds[64];

	for (int f = 0; f < file_count; f++)
		fds[f] = open_file(f, 0);
	for (long i = 0; i < count; i++)
		for (int f = 0; f < file_count; f++)
			total += one_read(fds[f], buffer, i);
	for (int f = 0; f < file_count; f++)
		close(fds[f]);
	printf("{\"bytes\": %ld}\n", total);
}

static void direct(void)
{
	int fd = open_file(0, O_DIRECT);
	long total = 0;
	void *buffer;

	if (posix_memalign(&buffer, 4096, size))
		die("memory");
	for (long i = 0; i < count; i++) {
		long got = pread(fd, buffer, size, i * size);

		if (got < 0)
			die("pread");
		total += got;
	}
	close(fd);
	printf("{\"bytes\": %ld}\n", total);
}

static void storm(void)
{
	int fd = open_file(0, 0);
	char *buffer = malloc(size);
	long began = now_ns();

	for (long i = 0; i < count; i++)
		if (pread(fd, buffer, size, 0) != size)
			die("pread");
	began = now_ns() - began;
	close(fd);
	printf("{\"ns\": %ld}\n", began);
}

static void *thread_reads(void *arg)
{
	char *buffer = malloc(size);
	int fd = *(int *)arg;

	for (long i = 0; i < count; i++)
		if (pread(fd, buffer, size, i * size) != size)
			die("pread");
	return NULL;
}

static void threads(void)
{
	int fd = open_file(0, 0);
	pthread_t all[5];

	for (int t = 0; t < 5; t++)
		pthread_create(&all[t], NULL, thread_reads, &fd);
	for (int t = 0; t < 5; t++)
		pthread_join(all[t], NULL);
	close(fd);
	printf("{\"threads\": 5}\n");
}

static void touch(int fd, long length)
{
	volatile char *map = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
	struct rusage before, after;
	long sum = 0;

	if (map == MAP_FAILED)
		die("mmap");
	if (size && madvise((void *)map, length, MADV_RANDOM)) /* no readahead */
		die("madvise");
	getrusage(RUSAGE_THREAD, &before);
	getrusage(RUSAGE_THREAD, &before); /* its own pages are there now */
	for (long at = 0; at < length; at += 4096)
		sum += map[at];
	getrusage(RUSAGE_THREAD, &after);
	munmap((void *)map, length);
	printf("{\"minor\": %ld, \"major\": %ld}\n", after.ru_minflt - before.ru_minflt,
	       after.ru_majflt - before.ru_majflt);
}

static long length_of(int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		die("fstat");
	return st.st_size;
}

static volatile int stop;

/* Holds the lock of the memory map for writing, most of the time. */
static void *change_mappings(void *arg)
{
	while (!stop) {
		char *map = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

		munmap(map, 1 << 20);
	}
	return arg;
}

/* With a count: while a thread keeps changing the memory map. */
static void touches(void)
{
	int fd = open_file(0, 0);
	pthread_t thread;

	if (count)
		pthread_create(&thread, NULL, change_mappings, NULL);
	touch(fd, length_of(fd));
	stop = 1;
	if (count)
		pthread_join(thread, NULL);
	close(fd);
}

static void populate(void)
{
	int fd = open_file(0, 0);
	long length = length_of(fd);
	void *map = mmap(NULL, length, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);

	if (map == MAP_FAILED)
		die("mmap");
	close(fd);
	for (long i = 0; i < count; i++)
		if (madvise(map, size, MADV_WILLNEED))
			die("madvise");
	munmap(map, length);
	printf("{\"bytes\": %ld}\n", length);
}

/* Children one after the other: one ends with 3, one is told to end, one runs `true`. */
static void children(void)
{
	int pids[3], status;

	for (int i = 0; i < 3; i++) {
		pids[i] = fork();
		if (pids[i] == 0 && i == 0)
			_exit(3);
		if (pids[i] == 0 && i == 1)
			for (;;)
				pause();
		if (pids[i] == 0) {
			execl("/bin/true", "true", NULL);
			_exit(127);
		}
		if (i == 1)
			kill(pids[i], SIGTERM);
		waitpid(pids[i], &status, 0);
	}
	printf("{\"pids\": [%d, %d, %d]}\n", pids[0], pids[1], pids[2]);
}

static void *exec_true(void *arg)
{
	execl("/bin/true", "true", NULL);
	return arg;
}

/* exec by a thread that is not the leader */
static void thread_exec(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, exec_true, NULL);
	pthread_join(thread, NULL);
}

static const struct {
	const char *name;
	void (*work)(void);
} works[] = {
	{"reads", reads},	{"direct", direct},	      {"storm", storm},
	{"threads", threads},	{"touches", touches},	      {"populate", populate},
	{"children", children}, {"thread_exec", thread_exec},
};

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	count = atol(argv[2]);
	size = atol(argv[3]);
	files = argv + 4;
	file_count = argc - 4;
	setvbuf(stdout, NULL, _IONBF, 0);
	printf("ready\n");
	wait_line();
	for (unsigned i = 0; i < sizeof(works) / sizeof(*works); i++)
		if (!strcmp(works[i].name, argv[1]))
			works[i].work();
	wait_line();
	return 0;
}
