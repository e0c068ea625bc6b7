/* cgroup.c -- /proc/self/cgroup says which groups, /proc/self/mountinfo where their folders are.
 *
 * A line of mountinfo is "36 25 0:31 ROOT MOUNT rw,... - cgroup2 cgroup2 rw,..."; ROOT is the group
 * that MOUNT shows. A line of cgroup is "4:cpu,cpuacct:/job/step" (version 1) or "0::/job/step".
 * The folder of a group is MOUNT followed by its path without ROOT. A path that does not begin with
 * ROOT is of another name space: then the mount itself is all that can be seen. */
#include "device/cpu/cgroup.h"

#include <limits.h>

enum { LINE = 2 * PATH_MAX };

int64_t ls_cgroup_number(const char *folder, const char *file, const char *name)
{
    char path[PATH_MAX], line[256];
    size_t len = strlen(name);
    long long value = -1;

    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        const char *p = line + len;
        if (strncmp(line, name, len) != 0 || (len && *p != ':' && *p != ' '))
            continue;
        if (sscanf(p + (*p == ':'), "%lld", &value) != 1)
            value = -1;
        break;
    }
    if (f)
        fclose(f);
    return (int64_t)value;
}

/* Whether a list such as "rw,cpu,cpuacct" has the word. */
static bool listed(const char *list, const char *word)
{
    size_t len = strlen(word);

    for (const char *p = list; (p = strstr(p, word)); p += len)
        if ((p == list || p[-1] == ',') && (p[len] == ',' || p[len] == '\0'))
            return true;
    return false;
}

/* The path of this process's group, "" when there is none. */
static void own_group(const char *root, const char *controller, int version, char *path_out)
{
    char name[PATH_MAX], line[LINE];

    path_out[0] = '\0';
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *f = fopen(name, "re");
    while (f && fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        controllers++;
        path[strcspn(path, "\n")] = '\0';
        if (version == 2 ? *controllers == '\0' : listed(controllers, controller)) {
            snprintf(path_out, PATH_MAX, "%s", path);
            break;
        }
    }
    if (f)
        fclose(f);
}

/* Where the hierarchy is mounted, and which group is its top there. */
static bool mount_of(const char *root, const char *controller, int version, char *top_out,
                     char *mount_out)
{
    char name[PATH_MAX], line[LINE], type[32], options[1024];
    bool found = false;

    snprintf(name, sizeof name, "%s/proc/self/mountinfo", root);
    FILE *f = fopen(name, "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *dash = strstr(line, " - ");
        if (!dash || sscanf(line, "%*s %*s %*s %4095s %4095s", top_out, mount_out) != 2 ||
            sscanf(dash, " - %31s %*s %1023s", type, options) != 2)
            continue;
        found = version == 2 ? strcmp(type, "cgroup2") == 0
                             : strcmp(type, "cgroup") == 0 && listed(options, controller);
    }
    if (f)
        fclose(f);
    return found;
}

static void walk(const char *root, const char *controller, int version, ls_cgroup_visit visit,
                 void *context)
{
    char own[PATH_MAX], top[PATH_MAX], mount[PATH_MAX], folder[3 * PATH_MAX];
    const char *below = own;

    own_group(root, controller, version, own);
    if (!*own || !mount_of(root, controller, version, top, mount))
        return;
    if (strcmp(top, "/") != 0) {
        size_t len = strlen(top);
        bool inside = strncmp(own, top, len) == 0 && (own[len] == '/' || own[len] == '\0');
        below = inside ? own + len : "";
    }
    if (strcmp(below, "/") == 0 || strstr(below, ".."))
        below = "";
    size_t least = (size_t)snprintf(folder, sizeof folder, "%s%s", root, mount);
    snprintf(folder + least, sizeof folder - least, "%s", below);
    for (;;) {
        visit(context, folder, version);
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= least || !slash)
            return;
        *slash = '\0';
    }
}

void ls_cgroup_walk(const char *root, const char *controller, ls_cgroup_visit visit, void *context)
{
    walk(root, controller, 1, visit, context);
    walk(root, controller, 2, visit, context);
}
