/* gpu_health.h -- the health of a GPU while it trains: errors that the driver reports (XID), and clocks
 * held back by heat or by the power supply.
 *
 * Looked at after a step, at most once a second, because asking takes up to a millisecond. What is
 * new becomes an incident (kind "gpu") and a warning; training goes on. That the power limit holds
 * clocks back is how a large card works, and no incident. */
#pragma once
#include "device/nvml.h"

LS_C_BEGIN

typedef struct ls_session ls_session;

typedef struct ls_gpu_health { /* all zero at first */
    int64_t looked_ns;         /* when it was last looked; 0: never */
    int64_t xids;              /* reported so far */
    int64_t slowdowns;         /* how often clocks began to be held back */
    bool slow;                 /* they were when last looked */
} ls_gpu_health;

/* nvml may be NULL: nothing happens. */
void ls_gpu_health_look(ls_gpu_health *health, ls_nvml *nvml, ls_session *session);

LS_C_END
