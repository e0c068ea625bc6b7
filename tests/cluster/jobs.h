/* jobs.h -- run a job inside a test, keep what it printed, and look for what it left behind. */
#pragma once
#include <sys/types.h>
#include "base/str.h"
#include "cluster/node/agent.h"

typedef struct jobs_run {
    ls_status st;
    ls_agent_result result;
    ls_str out, err;
} jobs_run;

/* Run args with its output captured; command is a line for the shell, or NULL to take args'. */
void jobs_do(jobs_run *run, ls_agent_args args, const char *command);
void jobs_release(jobs_run *run);

/* Mark this process and all that come from it with a variable; then count those alive. */
void jobs_mark(void);
int jobs_marked(void); /* without this process */
/* Wait until none is left but this process; fails the test after 20 s. What tests start lives for
 * 30 s or longer when nobody ends it. */
void jobs_expect_none(const char *file, int line);
#define JOBS_EXPECT_NONE() jobs_expect_none(__FILE__, __LINE__)

/* Open descriptors of this process. */
int jobs_files(void);

/* Wait until a file exists. */
void jobs_await(const char *path);

/* The whole number that a file holds. */
long jobs_number(const char *path);
