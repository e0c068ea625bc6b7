/* fault.h -- named points where tests make things go wrong.
 *
 * LS_FAULT("room.point") is true when the point is armed and its turn has come; the caller then
 * fails as the outside world would. LINESHAFT_FAULT in the environment arms points in builds made
 * with -DLS_FAULTS (the test binary and build/faults); in others the macro is a constant false.
 *
 *   LINESHAFT_FAULT="file.write@3"          the third time: the caller fails
 *   LINESHAFT_FAULT="train.slow.1@3+"       the third time and every time after it
 *   LINESHAFT_FAULT="ckpt.rename@1=kill"    the process kills itself with SIGKILL there
 *   several, separated by commas */
#pragma once
#include "base/base.h"

LS_C_BEGIN

#ifdef LS_FAULTS
#define LS_FAULT(point) ls_fault_hit(point)
#else
#define LS_FAULT(point) false
#endif

bool ls_fault_hit(const char *point);

/* For tests in the same process: the text that LINESHAFT_FAULT would hold, or NULL for none. */
void ls_fault_arm(const char *plan);

LS_C_END
