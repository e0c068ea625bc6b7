/* cmd_doctor.h -- what `lineshaft doctor` finds, as a list; private to its files.
 *
 * Each finding is one sentence with a mark. What cannot be found out is marked unknown; nothing is
 * guessed. cmd_doctor.c prints the list; the others fill it. */
#pragma once
#include "cli/term.h"
#include "config/run.h"
#include "device/cpu/cpus.h"
#include "device/device.h"

typedef enum ls_doctor_mark {
    LS_DOCTOR_OK,
    LS_DOCTOR_NOTE,    /* works, but the reader may want to change or know something */
    LS_DOCTOR_PROBLEM, /* something does not work; the exit code is 1 */
    LS_DOCTOR_UNKNOWN  /* could not be found out */
} ls_doctor_mark;

typedef struct ls_doctor_finding {
    const char *section, *name; /* static texts: "cores", "threads" */
    ls_doctor_mark mark;
    char text[640];
    char hint[320]; /* a sentence, or "" */
    double value;   /* for programs, in the unit that the reference names */
    bool has_value;
} ls_doctor_finding;

typedef struct ls_doctor {
    ls_doctor_finding findings[64];
    int count;
    bool measure;      /* spend a second on speeds */
    bool busy;         /* others compute now, as far as that was measured */
    ls_run *run;       /* owned; NULL: none was given, or it cannot be read */
    ls_cpus cpus;      /* owned */
    ls_device *device; /* owned; the CPU as the run would use it; NULL: it cannot be opened */
} ls_doctor;

void ls_doctor_say(ls_doctor *d, const char *section, const char *name, ls_doctor_mark mark,
                   const char *fmt, ...) LS_PRINTF(5, 6);
/* A number for programs, of the last finding. */
void ls_doctor_value(ls_doctor *d, double value);
/* The last error as a finding, with its hint. */
void ls_doctor_say_error(ls_doctor *d, const char *section, const char *name, ls_doctor_mark mark);

/* cmd_doctor_cpu.c: processor, cores, memory, speeds. */
void ls_doctor_cpu(ls_doctor *d);
void ls_doctor_cores(ls_doctor *d);
void ls_doctor_memory(ls_doctor *d);
void ls_doctor_speed(ls_doctor *d);

/* cmd_doctor_system.c: GPU, build, disk, the run. */
void ls_doctor_gpu(ls_doctor *d);
void ls_doctor_sensors(ls_doctor *d, const char *bus_id);
void ls_doctor_build(ls_doctor *d);
void ls_doctor_disk(ls_doctor *d);
void ls_doctor_run(ls_doctor *d);

/* The list as people read it, and as programs do. */
void ls_doctor_text(const ls_doctor *d, const ls_term *term, ls_str *out);
void ls_doctor_json(const ls_doctor *d, ls_str *out);
