// SPDX-License-Identifier: Apache-2.0
/* Small operations, each many times: `operations FILE` (a cached file of 4 MiB) reads names from
 * stdin and answers each with nanoseconds per operation, the least of many batches. Where the
 * clock counts instructions, so do they; `thousand` is a thousand instructions.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define AROUND (16 * PAGE) /* what one fault of a cached file maps */
#define BATCH 60
#define BATCHES 40

static int fd;
static char buffer[PAGE];
static volatile char sink;

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

static void thousand(char *memory, int i)
{
	long left = 500;

	__asm__ volatile("1: sub $1, %0\n\tjnz 1b" : "+r"(left));
}

static void getppid_(char *memory, int i)
{
	syscall(SYS_getppid);
}

static void read_4k(char *memory, int i)
{
	if (pread(fd, buffer, PAGE, i * PAGE) != PAGE)
		die("pread");
}

static void touch(char *memory, int i)
{
	sink = memory[i * AROUND];
}

static void touch_anonymous(char *memory, int i)
{
	memory[i * AROUND] = 1;
}

static const struct {
	const char *name;
	void (*operation)(char *memory, int i);
	int map_flags; /* of fresh memory for each batch; 0: none */
} all[] = {
	{"thousand", thousand, 0},
	{"empty_syscall", getppid_, 0},
	{"read_4k", read_4k, 0},
	{"file_fault", touch, MAP_SHARED},
	{"anonymous_fault", touch_anonymous, MAP_PRIVATE | MAP_ANONYMOUS},
};

static double batch(int which)
{
	int flags = all[which].map_flags;
	char *memory = NULL;
	double began;

	if (flags) {
		memory = mmap(NULL, BATCH * AROUND, PROT_READ | PROT_WRITE, flags,
			      flags & MAP_ANONYMOUS ? -1 : fd, 0);
		if (memory == MAP_FAILED)
			die("mmap");
		if (flags & MAP_ANONYMOUS)
			madvise(memory, BATCH * AROUND, MADV_NOHUGEPAGE);
	}
	began = now_ns();
	for (int i = 0; i < BATCH; i++)
		all[which].operation(memory, i);
	began = now_ns() - began;
	if (memory)
		munmap(memory, BATCH * AROUND);
	return began / BATCH;
}

static double least(int which)
{
	double found = batch(which); /* the first warms up */

	for (int i = 0; i < BATCHES; i++) {
		double took = batch(which);

		if (took < found)
			found = took;
	}
	return found;
}

int main(int argc, char **argv)
{
	char name[64];

	fd = argc == 2 ? open(argv[1], O_RDWR) : -1;
	if (fd < 0) {
		fprintf(stderr, "usage: operations FILE\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IONBF, 0);
	printf("ready\n");
	while (fgets(name, sizeof(name), stdin)) {
		name[strcspn(name, "\n")] = 0;
		for (unsigned i = 0; i < sizeof(all) / sizeof(*all); i++)
			if (!strcmp(name, all[i].name))
				printf("%.1f\n", least(i));
	}
	return 0;
}
