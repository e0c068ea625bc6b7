/* nvml.c -- a library with NVML's symbols and a card that the test describes. Built as a shared
 * object of its own, opened by the code under test as the driver's would be. */
#include <string.h>

#define SHOWN __attribute__((visibility("default")))

enum { NOT_SUPPORTED = 3, NOT_FOUND = 6, NOT_LOADED = 9, TIMEOUT = 10 };

/* How it behaves: 0 as a whole card, 1 a card that tells its memory only, 2 the driver is gone. */
SHOWN int fake_nvml_mode;
SHOWN int fake_nvml_open;                                /* inits less shutdowns */
SHOWN unsigned long long fake_nvml_energy;               /* mJ; grows by 250 J with each reading */
SHOWN unsigned long long fake_nvml_xids[4];              /* errors to come, until a 0 */
SHOWN unsigned long long fake_nvml_reasons = 0x4 | 0x40; /* power limit, heat */
static int card, set;

SHOWN int nvmlInit_v2(void);
SHOWN int nvmlShutdown(void);
SHOWN int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out);
SHOWN int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **out);
SHOWN int nvmlDeviceGetPowerUsage(void *c, unsigned *out);
SHOWN int nvmlDeviceGetEnforcedPowerLimit(void *c, unsigned *out);
SHOWN int nvmlDeviceGetTotalEnergyConsumption(void *c, unsigned long long *out);
SHOWN int nvmlDeviceGetClockInfo(void *c, int kind, unsigned *out);
SHOWN int nvmlDeviceGetMaxClockInfo(void *c, int kind, unsigned *out);
SHOWN int nvmlDeviceGetTemperature(void *c, int sensor, unsigned *out);
SHOWN int nvmlDeviceGetMemoryInfo(void *c, unsigned long long out[3]);
SHOWN int nvmlDeviceGetTotalEccErrors(void *c, int kind, int counter, unsigned long long *out);
SHOWN int nvmlDeviceGetCurrentClocksThrottleReasons(void *c, unsigned long long *out);
SHOWN int nvmlEventSetCreate(void **out);
SHOWN int nvmlEventSetFree(void *s);
SHOWN int nvmlDeviceRegisterEvents(void *c, unsigned long long types, void *s);

typedef struct event {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} event;
SHOWN int nvmlEventSetWait_v2(void *s, event *out, unsigned timeout_ms);

/* What a card that says little answers; or a wrong card. */
static int refuses(const void *c)
{
    return fake_nvml_mode == 1 || c != &card ? NOT_SUPPORTED : 0;
}

int nvmlInit_v2(void)
{
    if (fake_nvml_mode == 2)
        return NOT_LOADED;
    fake_nvml_open++;
    return 0;
}

int nvmlShutdown(void)
{
    fake_nvml_open--;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    *out = &card;
    return index == 0 ? 0 : NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **out)
{
    *out = &card;
    return strcmp(bus_id, "0000:0b:00.0") == 0 ? 0 : NOT_FOUND;
}

int nvmlDeviceGetPowerUsage(void *c, unsigned *out)
{
    *out = 612500;
    return refuses(c);
}

int nvmlDeviceGetEnforcedPowerLimit(void *c, unsigned *out)
{
    *out = 700000;
    return refuses(c);
}

int nvmlDeviceGetTotalEnergyConsumption(void *c, unsigned long long *out)
{
    *out = fake_nvml_energy += 250000;
    return refuses(c);
}

int nvmlDeviceGetClockInfo(void *c, int kind, unsigned *out)
{
    *out = kind == 1 ? 1485 : 3201;
    return refuses(c);
}

int nvmlDeviceGetMaxClockInfo(void *c, int kind, unsigned *out)
{
    *out = kind == 1 ? 1980 : 3201;
    return refuses(c);
}

int nvmlDeviceGetTemperature(void *c, int sensor, unsigned *out)
{
    *out = 58;
    return sensor == 0 ? refuses(c) : NOT_SUPPORTED;
}

int nvmlDeviceGetMemoryInfo(void *c, unsigned long long out[3])
{
    out[0] = 143771ull << 20;
    out[1] = 143000ull << 20;
    out[2] = 771ull << 20;
    return c == &card ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetTotalEccErrors(void *c, int kind, int counter, unsigned long long *out)
{
    *out = kind == 0 ? 5 : 2;
    return counter == 0 ? refuses(c) : NOT_SUPPORTED;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *c, unsigned long long *out)
{
    *out = fake_nvml_reasons;
    return refuses(c);
}

int nvmlEventSetCreate(void **out)
{
    *out = &set;
    return 0;
}

int nvmlEventSetFree(void *s)
{
    return s == &set ? 0 : NOT_FOUND;
}

int nvmlDeviceRegisterEvents(void *c, unsigned long long types, void *s)
{
    return types == 8 && s == &set ? refuses(c) : NOT_SUPPORTED;
}

int nvmlEventSetWait_v2(void *s, event *out, unsigned timeout_ms)
{
    if (s != &set || timeout_ms != 0 || fake_nvml_xids[0] == 0)
        return TIMEOUT;
    *out = (event){.device = &card, .type = 8, .data = fake_nvml_xids[0]};
    memmove(fake_nvml_xids, fake_nvml_xids + 1, 3 * sizeof *fake_nvml_xids);
    fake_nvml_xids[3] = 0;
    return 0;
}
