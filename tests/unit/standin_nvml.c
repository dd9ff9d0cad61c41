/*
 * A stand-in for NVIDIA's libnvidia-ml.so.1, built by the tests: one made-up device, no hardware.
 * Each function returns what it is told to, or does not come back until it is let go.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64

struct told {
	char name[64];
	int code;
	int hang;
	unsigned long long value;
	int has_value;
	int calls;
};

static struct told told[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t freed = PTHREAD_COND_INITIALIZER;

static struct told *of(const char *name)
{
	for (int i = 0; i < MOST; i++) {
		if (!told[i].name[0])
			strncpy(told[i].name, name, sizeof(told[i].name) - 1);
		if (!strcmp(told[i].name, name))
			return &told[i];
	}
	abort();
}

void standin_reset(void)
{
	pthread_mutex_lock(&lock);
	memset(told, 0, sizeof(told));
	pthread_cond_broadcast(&freed);
	pthread_mutex_unlock(&lock);
}

void standin_return(const char *name, int code)
{
	pthread_mutex_lock(&lock);
	of(name)->code = code;
	pthread_mutex_unlock(&lock);
}

void standin_value(const char *name, unsigned long long value)
{
	pthread_mutex_lock(&lock);
	of(name)->value = value;
	of(name)->has_value = 1;
	pthread_mutex_unlock(&lock);
}

void standin_hang(const char *name, int hang)
{
	pthread_mutex_lock(&lock);
	of(name)->hang = hang;
	pthread_cond_broadcast(&freed);
	pthread_mutex_unlock(&lock);
}

int standin_calls(const char *name)
{
	pthread_mutex_lock(&lock);
	int calls = of(name)->calls;
	pthread_mutex_unlock(&lock);
	return calls;
}

static int called(const char *name)
{
	pthread_mutex_lock(&lock);
	of(name)->calls++;
	while (of(name)->hang)
		pthread_cond_wait(&freed, &lock);
	int code = of(name)->code;
	pthread_mutex_unlock(&lock);
	return code;
}

static unsigned long long value(const char *name, unsigned long long usual)
{
	pthread_mutex_lock(&lock);
	unsigned long long found = of(name)->has_value ? of(name)->value : usual;
	pthread_mutex_unlock(&lock);
	return found;
}

#define RETURNS(usual_type, out, usual)                                                            \
	int code = called(__func__);                                                               \
	if (!code)                                                                                 \
		*(out) = (usual_type)value(__func__, usual);                                       \
	return code

typedef void *device_t;

struct memory {
	unsigned long long total, free, used;
};

struct utilization {
	unsigned int gpu, memory;
};

struct process {
	unsigned int pid;
	unsigned long long used;
	unsigned int gpu_instance, compute_instance;
};

const char *nvmlErrorString(int code)
{
	return code == 77 ? "\xff\xfe" : "an \x1b[31merror\n of the stand-in";
}

int nvmlInitWithFlags(unsigned int flags)
{
	return called(__func__);
}

int nvmlShutdown(void)
{
	return called(__func__);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, device_t *device)
{
	RETURNS(device_t, device, strcmp(address, "0000:01:00.0") ? 0 : 7);
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
	RETURNS(unsigned int, count, 1);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device_t *device)
{
	RETURNS(device_t, device, 7);
}

int nvmlDeviceGetMinorNumber(device_t device, unsigned int *minor)
{
	RETURNS(unsigned int, minor, 0);
}

int nvmlDeviceGetName(device_t device, char *name, unsigned int length)
{
	int code = called(__func__);

	if (!code && value(__func__, 0))
		memset(name, 0xff, length - 1), name[length - 1] = 0;
	else if (!code)
		strncpy(name, "Stand-in \x1b[2J\nGPU", length);
	return code;
}

int nvmlDeviceGetMemoryInfo(device_t device, struct memory *memory)
{
	int code = called(__func__);

	memory->total = 8ULL << 30;
	memory->used = value(__func__, 3ULL << 30);
	return code;
}

int nvmlDeviceGetUtilizationRates(device_t device, struct utilization *rates)
{
	int code = called(__func__);

	rates->gpu = value(__func__, 97);
	return code;
}

int nvmlDeviceGetClockInfo(device_t device, int type, unsigned int *mhz)
{
	RETURNS(unsigned int, mhz, type == 1 ? 210 : 405);
}

int nvmlDeviceGetMaxClockInfo(device_t device, int type, unsigned int *mhz)
{
	RETURNS(unsigned int, mhz, type == 1 ? 2100 : 7001);
}

int nvmlDeviceGetPerformanceState(device_t device, int *state)
{
	RETURNS(int, state, 8);
}

int nvmlDeviceGetPcieThroughput(device_t device, int counter, unsigned int *kbytes)
{
	RETURNS(unsigned int, kbytes, counter == 0 ? 1000 : 2000);
}

int nvmlDeviceGetCurrPcieLinkGeneration(device_t device, unsigned int *generation)
{
	RETURNS(unsigned int, generation, 1);
}

int nvmlDeviceGetMaxPcieLinkGeneration(device_t device, unsigned int *generation)
{
	RETURNS(unsigned int, generation, 4);
}

int nvmlDeviceGetCurrPcieLinkWidth(device_t device, unsigned int *width)
{
	RETURNS(unsigned int, width, 4);
}

int nvmlDeviceGetMaxPcieLinkWidth(device_t device, unsigned int *width)
{
	RETURNS(unsigned int, width, 16);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device_t device, unsigned long long *reasons)
{
	RETURNS(unsigned long long, reasons, 0x24);
}

static int processes(const char *name, unsigned int *count, struct process *found, unsigned int pid)
{
	int code = called(name);

	if (code)
		return code;
	if (!found) {
		*count = 1;
		return 7;
	}
	*count = 1;
	found->pid = pid;
	found->used = value(name, 2ULL << 30);
	return 0;
}

#ifdef OLD_DRIVER
int nvmlDeviceGetComputeRunningProcesses_v2(device_t device, unsigned int *count,
					    struct process *found)
{
	return processes(__func__, count, found, 4242);
}
#else
int nvmlDeviceGetCurrentClocksEventReasons(device_t device, unsigned long long *reasons)
{
	RETURNS(unsigned long long, reasons, 0x24);
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned int *count,
					    struct process *found)
{
	return processes(__func__, count, found, 4242);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t device, unsigned int *count,
					     struct process *found)
{
	return processes(__func__, count, found, 1);
}
#endif
