/* servers.h -- real etcd servers on loopback for a test; they die with it. */
#pragma once
#include <sys/types.h>
#include "base/base.h"

enum { SERVERS = 3 };

typedef struct servers {
    int n;
    pid_t pid[SERVERS];
    char url[SERVERS][64];
    const char *urls[SERVERS]; /* the same, as a list */
} servers;

/* Start so many as one cluster, and wait until each answers; skips the test where there is no etcd.
 */
void servers_start(servers *s, int n);
void servers_signal(servers *s, int which, int signal);
void servers_stop(servers *s);

/* A port of loopback that is free now. */
int servers_port(void);
