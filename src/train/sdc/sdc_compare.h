/* sdc_compare.h -- ranks compare their state, to find silent corruption: bits that changed although
 * no part of the machine reported an error.
 *
 * Every heal.compare steps, before a checkpoint is saved and at the end, ranks hash what several of
 * them have: weights and moments of all ranks (zero 0), of ranks in the same place of their shard
 * groups, or a part and the copy of it that a peer holds (train/replica). Where hashes differ the
 * majority is right. The rank that differs is named, leaves the job, and is replaced like one that
 * died. A rank that computed with damaged weights has spoiled the sums of all ranks since then, so
 * no rank keeps its state: all go back to the newest checkpoint, before which they had agreed.
 *
 * Without a majority all ranks go back in the same way, and remember what each had. In ordered mode
 * the steps that are done again show which rank was right, unless both were spoiled: then none is
 * named. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* What stands between the name of a rank and what is wrong with it. */
#define LS_SDC_COMPARE_MARK " is corrupt: "

/* Whether ranks were lost for this reason: one is corrupt, or one that cannot be named. */
bool ls_sdc_compare_caused(const char *why);

ls_status ls_sdc_compare_open(ls_session *session); /* the ranks are known, the step is open */
void ls_sdc_compare_close(ls_session *session);     /* at the end of the process */

/* Compare now, by all ranks, after a step; one rank has nothing to compare. LS_EPEER: another rank
 * is corrupt, or one that cannot be named; LS_EFAIL: this rank is, or dead ranks are not replaced. */
ls_status ls_sdc_compare_run(ls_session *session);

/* A rank was found to be corrupt: the failure with which this rank leaves its view or the job. */
ls_status ls_sdc_compare_accuse(const ls_session *session, int rank, const char *why);

/* For tests: a bit of this rank's state changes by itself (LINESHAFT_FAULT=train.flip.weight.R.S:
 * on rank R when step S is done; train.flip.moment.R.S, train.flip.copy.R.S likewise). */
void ls_sdc_compare_inject(ls_session *session);

LS_C_END
