/* Spends processor time in known functions: seven parts of ten in spin_long, three in spin_short,
 * and says how much it was. `spin MILLISECONDS [child]`: a line on stdin starts it, in a child of
 * its own if asked; it stays until stdin ends.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long sink;

static long long used_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

__attribute__((noinline)) void spin_long(long rounds)
{
	for (long i = 0; i < rounds; i++)
		sink += i;
}

__attribute__((noinline)) void spin_short(long rounds)
{
	for (long i = 0; i < rounds; i++)
		sink ^= i;
}

static void work(long long length_ns)
{
	long long in_long = 0, in_short = 0, at = used_ns(), end = at + length_ns, now;
	long turns = 0;

	while (at < end) {
		spin_long(700000);
		now = used_ns();
		in_long += now - at;
		spin_short(300000);
		at = used_ns();
		in_short += at - now;
		turns++;
	}
	printf("{\"pid\": %d, \"long_ns\": %lld, \"short_ns\": %lld, \"turns\": %ld}\n", getpid(),
	       in_long, in_short, turns);
	fflush(stdout);
}

int main(int count, char **args)
{
	char line[16];
	int child = 0;

	if (count < 2 || !fgets(line, sizeof(line), stdin))
		return 1;
	if (count > 2 && !strcmp(args[2], "child"))
		child = fork();
	if (count > 2 && child)
		waitpid(child, NULL, 0);
	else
		work(atoll(args[1]) * 1000000);
	if (count > 2 && !child)
		return 0;
	while (fgets(line, sizeof(line), stdin))
		;
	return 0;
}
