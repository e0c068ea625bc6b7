/* mp_device_contract.h -- what moves of a model-parallel group by collectives of device memory must
 * do, by every provider and on any device: known numbers, in odd sizes, against a plain loop. */
#pragma once
#include "parallel/mp_group.h"

/* All ranks of comm, two or more, each with a stream of a device of its own. */
void mp_device_contract(ls_comm *comm, ls_stream *stream, const char *provider);

/* Moves without end, until the stream fails; rank 1 is killed in the middle of them. Of the others the
 * stream then fails with LS_EPEER, and works again when it is revived. */
void mp_device_loses_rank_1(ls_comm *comm, ls_stream *stream, const char *provider);
