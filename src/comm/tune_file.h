/* tune_file.h -- link numbers and settled choices on disk, one small JSON file for each topology.
 *
 * The file's name is a hash of the topology: program version, transport, and the hosts with the
 * number of their ranks; the text itself is inside and is compared. A file is replaced as a whole.
 */
#pragma once
#include "comm/tune.h"

LS_C_BEGIN

/* "lineshaft 1.0, tcp, lab0 x2, lab1 x2" */
ls_status ls_tune_file_topology(const ls_comm *comm, char topology_out[LS_TUNE_TOPOLOGY]);

/* $XDG_CACHE_HOME/lineshaft/tune/HASH.json, or under ~/.cache; "" when there is no home. */
void ls_tune_file_path(const char *topology, char path_out[LS_TUNE_PATH]);

/* In a communicator, pairs of nodes use the node numbers of the job; on disk they use positions in
 * the topology text (0 is its first host), because the order in which hosts join a job is chance.
 * Change tune->pair from one to the other; pairs of nodes that are not there are left out. */
typedef enum ls_tune_numbers { LS_TUNE_NODES, LS_TUNE_POSITIONS } ls_tune_numbers;
ls_status ls_tune_file_number(const ls_comm *comm, ls_tune *tune, ls_tune_numbers to);

/* Sets source, numbers and picks. LS_EIO: the file is missing or unreadable. LS_EDATA: it is
 * damaged, or of another topology; the message says what is wrong. */
ls_status ls_tune_file_read(const char *path, const char *topology, ls_tune *tune);

/* Makes the folder if needed. */
ls_status ls_tune_file_write(const char *path, const char *topology, const ls_tune *tune);

LS_C_END
