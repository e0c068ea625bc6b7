/* nvml.h -- what the driver's management library says of one GPU: power, energy, clocks, heat,
 * errors.
 *
 * NVML comes with NVIDIA's driver. It is opened at run time through declarations of our own, so
 * that the program needs neither its header nor its library; every function of it may be missing,
 * and every value may be refused by a card. LINESHAFT_NVML names the library where it is not
 * "libnvidia-ml.so.1". Reading takes up to a millisecond: not for every step. */
#pragma once
#include "base/base.h"

LS_C_BEGIN

typedef struct ls_nvml ls_nvml;

/* Why clocks are lower than they could be; the bits of NVML's "clocks event reasons". */
enum {
    LS_NVML_IDLE = 0x1,
    LS_NVML_POWER_CAP = 0x4,
    LS_NVML_HW_SLOWDOWN = 0x8,
    LS_NVML_SW_THERMAL = 0x20,
    LS_NVML_HW_THERMAL = 0x40,
    LS_NVML_POWER_BRAKE = 0x80
};

/* NaN: the card or the library does not say. */
typedef struct ls_nvml_reading {
    double power_w, limit_w;
    double energy_j; /* since the driver was loaded */
    double sm_mhz, sm_most_mhz, memory_mhz;
    double temperature_c;
    double used_bytes, total_bytes; /* of the card's memory, all processes */
    double corrected, uncorrected;  /* memory errors since the driver was loaded (ECC) */
    double reasons;                 /* bits, see above */
    int64_t xids, last_xid;         /* errors of the GPU ("XID") since it was opened */
} ls_nvml_reading;

/* Open the library and look up the card with this PCI address ("0000:0b:00.0"); "" takes the
 * first. NULL, or a sentence's end that says why not ("there is no libnvidia-ml.so.1"), which lies
 * in the caller's buffer. */
const char *ls_nvml_open(ls_nvml **nvml_out, const char *bus_id, char why_out[160]);
void ls_nvml_close(ls_nvml *nvml); /* NULL is allowed */

/* All that the card says now; everything unknown when nvml is NULL. */
void ls_nvml_read(ls_nvml *nvml, ls_nvml_reading *reading_out);

/* Only what may go wrong while a run trains. */
typedef struct ls_nvml_state {
    double reasons;         /* bits; NaN: not known */
    int64_t xids, last_xid; /* since it was opened */
} ls_nvml_state;
void ls_nvml_look(ls_nvml *nvml, ls_nvml_state *state_out);

/* Whether one of the reasons is heat or the power supply: something that a person should see to. */
bool ls_nvml_slowed(double reasons);

/* "power limit, heat", or "" when nothing holds the clocks back but that there is nothing to do. */
void ls_nvml_reasons(double reasons, char text_out[128]);

LS_C_END
