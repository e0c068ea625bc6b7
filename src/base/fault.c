/* fault.c -- the plan of faults and the count of visits to each point. */
#include "base/fault.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

enum { MOST = 8 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char point[96];
    long turn;         /* visits left before it strikes; 0: spent */
    bool kills, stays; /* stays: strikes every time from then on */
} plan[MOST];
static int planned = -1; /* -1: the environment has not been read */

static void read_plan(const char *text)
{
    planned = 0;
    while (text && *text && planned < MOST) {
        size_t len = strcspn(text, ",");
        char item[96];
        if (len < sizeof item) {
            memcpy(item, text, len);
            item[len] = '\0';
            char *kill_at = strstr(item, "=kill");
            if (kill_at)
                *kill_at = '\0';
            char *at = strchr(item, '@');
            long turn = at ? strtol(at + 1, NULL, 10) : 1;
            plan[planned].stays = at && strchr(at, '+');
            if (at)
                *at = '\0';
            snprintf(plan[planned].point, sizeof plan[planned].point, "%s", item);
            plan[planned].turn = turn;
            plan[planned].kills = kill_at != NULL;
            planned++;
        }
        text += len + (text[len] == ',');
    }
}

void ls_fault_arm(const char *text)
{
    pthread_mutex_lock(&lock);
    read_plan(text);
    pthread_mutex_unlock(&lock);
}

bool ls_fault_hit(const char *point)
{
    bool hit = false;

    pthread_mutex_lock(&lock);
    if (planned < 0)
        read_plan(getenv("LINESHAFT_FAULT"));
    for (int i = 0; i < planned; i++)
        if (plan[i].turn > 0 && strcmp(plan[i].point, point) == 0 && --plan[i].turn == 0) {
            hit = true;
            plan[i].turn = plan[i].stays;
            if (plan[i].kills)
                kill(getpid(), SIGKILL);
        }
    pthread_mutex_unlock(&lock);
    return hit;
}
