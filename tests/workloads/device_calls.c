/* Calls the drivers of devices as it is told, line by line on standard input, and times each call
 * itself. It knows nothing of what the calls mean: the devices are stand-ins, or real ones.
 *
 *   open SLOT PATH             slots 0 to 15 hold descriptors
 *   close SLOT
 *   ioctl SLOT NUMBER COUNT ARG
 *   map SLOT LENGTH OFFSET     all of it shared; an OFFSET of `same` is the address it gets
 *   unmap
 *   touch COUNT                so many bytes of the mapping, a page apart
 *   poll SLOT COUNT TIMEOUT_MS
 *   clear, poke OFFSET BYTES VALUE, peek OFFSET BYTES      a block of memory; mOFFSET points into
 * it
 *
 * Answers: what the last call returned (a peek: the value), its errno, how many of the calls failed
 * and the time inside all of them, ns, by the monotonic clock; then `done`.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 16
#define PAGE 4096

static uint64_t block[512];
static int slots[SLOTS];
static unsigned char *mapped;
static size_t mapped_length;

struct tally {
	long result;
	int error;
	long failed;
	long ns;
};

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static char *word(char **rest)
{
	char *found = strtok_r(NULL, " \n", rest);

	if (!found) {
		fprintf(stderr, "a word is missing\n");
		exit(1);
	}
	return found;
}

static uint64_t number(char **rest)
{
	char *text = word(rest);

	return *text == 'm' ? (uint64_t)block + strtoull(text + 1, NULL, 0)
			    : strtoull(text, NULL, 0);
}

static int *slot(char **rest)
{
	return &slots[number(rest) % SLOTS];
}

static void add(struct tally *tally, long result, long began)
{
	tally->ns += now() - began;
	tally->result = result;
	if (result == -1) {
		tally->error = errno;
		tally->failed++;
	}
}

static void map(struct tally *tally, char **rest)
{
	int fd = *slot(rest);
	size_t length = number(rest);
	char *offset = word(rest);
	int same = !strcmp(offset, "same"), flags = MAP_SHARED | (same ? MAP_FIXED : 0);
	void *at = NULL;
	long began;

	if (same) /* a free place */
		at = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	began = now();
	at = mmap(at, length, PROT_READ | PROT_WRITE, flags, fd,
		  same ? (off_t)at : (off_t)strtoull(offset, NULL, 0));
	add(tally, at == MAP_FAILED ? -1 : 0, began);
	if (at != MAP_FAILED) {
		mapped = at;
		mapped_length = length;
	}
}

static void call(struct tally *tally, char **rest)
{
	int fd = *slot(rest);
	unsigned long request = number(rest), count = number(rest), argument = number(rest);

	while (count--) {
		long began = now();

		add(tally, syscall(SYS_ioctl, fd, request, argument), began);
	}
}

static void wait_on(struct tally *tally, char **rest)
{
	struct pollfd one = {.fd = *slot(rest), .events = POLLIN | POLLPRI};
	unsigned long count = number(rest);
	int timeout_ms = number(rest);

	while (count--) {
		long began = now();

		add(tally, poll(&one, 1, timeout_ms), began);
	}
}

static void poke(char **rest)
{
	uint64_t offset = number(rest), bytes = number(rest), value = number(rest);

	if (offset + bytes <= sizeof(block) && bytes <= sizeof(value))
		memcpy((char *)block + offset, &value, bytes);
}

static long peek(char **rest)
{
	uint64_t offset = number(rest), bytes = number(rest), value = 0;

	if (offset + bytes <= sizeof(block) && bytes <= sizeof(value))
		memcpy(&value, (char *)block + offset, bytes);
	return (long)value;
}

static void obey(struct tally *tally, char *line)
{
	char *rest, *verb = strtok_r(line, " \n", &rest);
	int *fd;
	long began;

	if (!verb)
		return;
	if (!strcmp(verb, "open")) {
		fd = slot(&rest);
		verb = word(&rest);
		began = now();
		*fd = open(verb, O_RDWR | O_CLOEXEC);
		add(tally, *fd, began);
	} else if (!strcmp(verb, "close")) {
		fd = slot(&rest);
		began = now();
		add(tally, close(*fd), began);
	} else if (!strcmp(verb, "ioctl")) {
		call(tally, &rest);
	} else if (!strcmp(verb, "map")) {
		map(tally, &rest);
	} else if (!strcmp(verb, "unmap")) {
		began = now();
		add(tally, munmap(mapped, mapped_length), began);
	} else if (!strcmp(verb, "touch")) {
		for (uint64_t i = 0, count = number(&rest); i < count; i++)
			mapped[i * PAGE % mapped_length] = 1;
	} else if (!strcmp(verb, "poll")) {
		wait_on(tally, &rest);
	} else if (!strcmp(verb, "clear")) {
		memset(block, 0, sizeof(block));
	} else if (!strcmp(verb, "poke")) {
		poke(&rest);
	} else if (!strcmp(verb, "peek")) {
		tally->result = peek(&rest);
	} else {
		fprintf(stderr, "what is %s?\n", verb);
		exit(1);
	}
}

int main(void)
{
	char line[4096];

	while (fgets(line, sizeof(line), stdin)) {
		struct tally tally = {0};

		obey(&tally, line);
		printf("%ld %d %ld %ld done\n", tally.result, tally.error, tally.failed, tally.ns);
		fflush(stdout);
	}
	return 0;
}
