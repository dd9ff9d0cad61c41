/* Calls functions of libraries as it is told, line by line on standard input, and answers each
 * line with `done`. It knows nothing of what the functions are: the libraries are stand-ins.
 *
 *   open PATH                  map a library at run time
 *   close                      unmap it again
 *   look PATH, make PATH       open a file, which may not be there; make one
 *   poke OFFSET VALUE          64 bits into a block of memory
 *   call NAME COUNT ARG...     by dlsym, up to six arguments; mOFFSET points into the block
 *   ask FLAGS NAME COUNT ARG...  the same by cuGetProcAddress_v2, as CUDA's runtime does
 *   decode NAME COUNT TOKENS   with a batch passed by value
 *   answer NAME ARG...         one call; answers with what it returned, 32 bits
 *   thread NAME COUNT ARG...   the same as call, in a thread that ends
 *   direct NAME COUNT ARG...   the same as call, but linked when this was built
 *   spin NAME COUNT ARG...     as call; answers with processor time of each call, ns
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef long (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

struct batch { /* the size and first field of llama_batch */
	int32_t n_tokens;
	void *pointers[6];
};
typedef int (*decoder)(void *, struct batch);
typedef int (*asker)(const char *, void **, int, uint64_t, int *);

#define CUDA_VERSION 12080 /* whose names are asked for */

#ifdef DIRECT
#include DIRECT /* LINKED_ALL: LINKED(NAME) for each function of the library */

#define LINKED(name) long name(void);
LINKED_ALL
#undef LINKED
#define LINKED(name) {#name, name},
static const struct {
	const char *name;
	long (*at)(void);
} linked[] = {LINKED_ALL};
#undef LINKED
#endif

static uint64_t block[512];
static void *opened;

struct work {
	function call;
	long count;
	uint64_t args[6];
};

static void *work(void *data)
{
	struct work *w = data;

	for (long i = 0; i < w->count; i++)
		w->call(w->args[0], w->args[1], w->args[2], w->args[3], w->args[4], w->args[5]);
	return NULL;
}

static void *find(const char *name)
{
	void *at = name ? dlsym(opened ? opened : RTLD_DEFAULT, name) : NULL;

	if (!at) {
		fprintf(stderr, "no function %s\n", name ? name : "?");
		exit(1);
	}
	return at;
}

#ifdef DIRECT
static void *find_linked(const char *name)
{
	for (size_t i = 0; name && i < sizeof(linked) / sizeof(*linked); i++)
		if (!strcmp(linked[i].name, name))
			return (void *)linked[i].at;
	fprintf(stderr, "not linked to %s\n", name ? name : "?");
	exit(1);
}
#endif

/* By the library's own look-up, which gives the newest function of that name. */
static void *asked(uint64_t flags, const char *name)
{
	asker ask = (asker)find("cuGetProcAddress_v2");
	void *at = NULL;
	int found = 0;

	if (!name || ask(name, &at, CUDA_VERSION, flags, &found) || !at) {
		fprintf(stderr, "the library knows no %s\n", name ? name : "?");
		exit(1);
	}
	return at;
}

static long number(char **rest)
{
	char *word = strtok_r(NULL, " \n", rest);

	if (!word)
		return 0;
	return *word == 'm' ? (long)block + strtol(word + 1, NULL, 0) : strtol(word, NULL, 0);
}

static void prepare(struct work *w, void *call, char **rest)
{
	w->call = (function)call;
	w->count = number(rest);
	for (int i = 0; i < 6; i++)
		w->args[i] = number(rest);
}

static void prepare_named(struct work *w, char **rest)
{
	prepare(w, find(strtok_r(NULL, " \n", rest)), rest);
}

static void prepare_asked(struct work *w, char **rest)
{
	uint64_t flags = number(rest);

	prepare(w, asked(flags, strtok_r(NULL, " \n", rest)), rest);
}

static void decode(char **rest)
{
	decoder call = (decoder)find(strtok_r(NULL, " \n", rest));
	long count = number(rest);
	struct batch batch = {.n_tokens = number(rest)};

	while (count-- > 0)
		call(block, batch);
}

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void obey(char *line)
{
	char *rest, *word = strtok_r(line, " \n", &rest);
	struct work w;
	pthread_t thread;
	long began;

	if (!word)
		return;
	if (!strcmp(word, "open")) {
		opened = dlopen(strtok_r(NULL, " \n", &rest), RTLD_NOW);
		if (!opened) {
			fprintf(stderr, "%s\n", dlerror());
			exit(1);
		}
	} else if (!strcmp(word, "close")) {
		dlclose(opened);
		opened = NULL;
	} else if (!strcmp(word, "look") || !strcmp(word, "make")) {
		int fd = open(strtok_r(NULL, " \n", &rest),
			      *word == 'm' ? O_CREAT | O_WRONLY : O_RDONLY, 0600);

		if (fd >= 0)
			close(fd);
	} else if (!strcmp(word, "poke")) {
		long at = number(&rest);

		block[at / 8] = number(&rest);
	} else if (!strcmp(word, "call")) {
		prepare_named(&w, &rest);
		work(&w);
	} else if (!strcmp(word, "ask")) {
		prepare_asked(&w, &rest);
		work(&w);
	} else if (!strcmp(word, "answer")) {
		w.call = (function)find(strtok_r(NULL, " \n", &rest));
		for (int i = 0; i < 6; i++)
			w.args[i] = number(&rest);
		printf("%d ", (int)w.call(w.args[0], w.args[1], w.args[2], w.args[3], w.args[4],
					  w.args[5]));
	} else if (!strcmp(word, "thread")) {
		prepare_named(&w, &rest);
		pthread_create(&thread, NULL, work, &w);
		pthread_join(thread, NULL);
	} else if (!strcmp(word, "decode")) {
		decode(&rest);
	} else if (!strcmp(word, "spin")) {
		prepare_named(&w, &rest);
		began = now();
		work(&w);
		printf("%.1f ", (double)(now() - began) / w.count);
#ifdef DIRECT
	} else if (!strcmp(word, "direct")) {
		prepare(&w, find_linked(strtok_r(NULL, " \n", &rest)), &rest);
		work(&w);
#endif
	} else {
		fprintf(stderr, "what is %s?\n", word);
		exit(1);
	}
}

int main(void)
{
	char line[4096];

	while (fgets(line, sizeof(line), stdin)) {
		obey(line);
		puts("done");
		fflush(stdout);
	}
	return 0;
}
