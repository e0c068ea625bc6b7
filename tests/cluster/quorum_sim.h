/* quorum_sim.h -- a job's nodes with the rules of quorum.h in one process: a clock and a network that are
 * not real, with delays, losses, cuts, crashes, restarts and disks that fail. Everything follows
 * from a seed, so what breaks once breaks again. There is one simulation at a time. */
#pragma once
#include "cluster/elect/quorum.h"

typedef struct sim_result {
    int leaders, views; /* terms with a coordinator, generations that held */
    int crashes, cuts;
} sim_result;

/* Play one seed. Returns NULL, or what broke. forget: nodes that come back have lost their
 * journals, but not their numbers, which is against the rules. */
const char *sim_play(uint64_t seed, bool forget, sim_result *result_out);

/* By hand, with a good network: nodes 0 .. n-1, of which the first is the coordinator. */
void sim_begin(int n);
void sim_run(int64_t ms);
void sim_cut(unsigned nodes);       /* these bits on one side, the others on the other; 0: none */
void sim_silence(int from, int to); /* one direction, until the next cut */
void sim_crash(int node, int64_t ms);
ls_quorum *sim_node(int node);

/* What a node would do at this time that obeys the rules alone: train while a coordinator has enough
 * nodes behind it, else stop, and leave after a minute. */
typedef enum sim_duty { SIM_TRAIN, SIM_STOP, SIM_LEAVE } sim_duty;
sim_duty sim_duty_at(int node, int64_t now_ns);
int64_t sim_now_ns(void);
int sim_leader(void);         /* the one that is up and leads; -1: none, or several */
const char *sim_broken(void); /* NULL: nothing */
