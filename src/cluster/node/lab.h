/* lab.h -- several hosts on one: network namespaces on a bridge, with links of a chosen speed.
 *
 *     lab0         lab1        lab2            network namespaces, 10.77.0.1, .2, .3
 *      |eth0        |eth0       |eth0          token bucket on each: what a host sends
 *     ─┴p0──────────┴p1─────────┴p2── br0      a namespace of its own; token bucket on each port:
 *                                              what a host receives
 *
 * The namespaces have no names and no processes; they exist as long as somebody holds their
 * descriptors: the process that opened the lab, and the processes in it. When these are gone, also
 * by kill -9, the kernel removes everything. The host's own network does not change at any time.
 *
 * Needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN) and the commands ip and tc. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

enum { LS_LAB_NODES = 200 }; /* most hosts of a lab */

typedef struct ls_lab ls_lab;

typedef struct ls_lab_args {
    int nodes;
    const char *link;  /* "1gbit", "100mbit"; "none": as fast as it goes */
    const char *burst; /* bytes that may pass at full speed: "256kb", "2mb"; "auto": see lab.c */
} ls_lab_args;

/* LS_EUSAGE: arguments that make no sense. LS_EIO: not allowed, or the kernel lacks something. */
ls_status ls_lab_open(ls_lab **lab_out, const ls_lab_args *args, int64_t deadline_ns);
void ls_lab_close(ls_lab *lab); /* NULL is allowed */

/* Of a host: its namespace (belongs to the lab), its name "lab2" and its address "10.77.0.3". */
int ls_lab_net_fd(const ls_lab *lab, int node);
const char *ls_lab_host(const ls_lab *lab, int node);
const char *ls_lab_address(const ls_lab *lab, int node);

/* Bits a second of "1gbit", and bytes of "256kb". LS_EUSAGE for anything else. */
ls_status ls_lab_parse_rate(const char *text, int64_t *bits_out);
ls_status ls_lab_parse_bytes(const char *text, int64_t *bytes_out);

/* The burst that "auto" means at a rate. */
int64_t ls_lab_burst(int64_t bits);

LS_C_END
