/* cupti_check.cu -- the records of device/cupti_impl.h against CUPTI's own header, where the
 * toolkit has it. Nothing is compiled of it. */
#if __has_include(<cupti_activity.h>)
#include <cupti.h>
#include "device/cupti_impl.h"

#define SAME(ours, a, theirs, b)                                          \
    static_assert(offsetof(ours, a) == offsetof(theirs, b) &&             \
                      sizeof(((ours *)0)->a) == sizeof(((theirs *)0)->b), \
                  "a record of CUPTI is not as device/cupti_impl.h has it")

SAME(ls_cupti_kernel_record, kind, CUpti_ActivityKernel10, kind);
SAME(ls_cupti_kernel_record, start, CUpti_ActivityKernel10, start);
SAME(ls_cupti_kernel_record, end, CUpti_ActivityKernel10, end);
SAME(ls_cupti_kernel_record, correlation, CUpti_ActivityKernel10, correlationId);
SAME(ls_cupti_kernel_record, name, CUpti_ActivityKernel10, name);
SAME(ls_cupti_copy_record, how, CUpti_ActivityMemcpy6, copyKind);
SAME(ls_cupti_copy_record, bytes, CUpti_ActivityMemcpy6, bytes);
SAME(ls_cupti_copy_record, start, CUpti_ActivityMemcpy6, start);
SAME(ls_cupti_copy_record, end, CUpti_ActivityMemcpy6, end);
SAME(ls_cupti_copy_record, correlation, CUpti_ActivityMemcpy6, correlationId);
SAME(ls_cupti_copy_record, bytes, CUpti_ActivityMemset4, bytes);
SAME(ls_cupti_copy_record, start, CUpti_ActivityMemset4, start);
SAME(ls_cupti_copy_record, end, CUpti_ActivityMemset4, end);
SAME(ls_cupti_copy_record, correlation, CUpti_ActivityMemset4, correlationId);
SAME(ls_cupti_external_record, external_kind, CUpti_ActivityExternalCorrelation, externalKind);
SAME(ls_cupti_external_record, id, CUpti_ActivityExternalCorrelation, externalId);
SAME(ls_cupti_external_record, correlation, CUpti_ActivityExternalCorrelation, correlationId);

#define EQUAL(ours, theirs) \
    static_assert((int)(ours) == (int)(theirs), "a number of CUPTI is not as cupti_impl.h has it")

EQUAL(LS_CUPTI_KIND_COPY, CUPTI_ACTIVITY_KIND_MEMCPY);
EQUAL(LS_CUPTI_KIND_SET, CUPTI_ACTIVITY_KIND_MEMSET);
EQUAL(LS_CUPTI_KIND_DRIVER, CUPTI_ACTIVITY_KIND_DRIVER);
EQUAL(LS_CUPTI_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_RUNTIME);
EQUAL(LS_CUPTI_KIND_KERNEL, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
EQUAL(LS_CUPTI_KIND_EXTERNAL, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
EQUAL(LS_CUPTI_EXTERNAL_OURS, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0);
EQUAL(LS_CUPTI_FLUSH_FORCED, CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
static_assert(CUPTI_ACTIVITY_MEMCPY_KIND_HTOD == 1 && CUPTI_ACTIVITY_MEMCPY_KIND_DTOH == 2 &&
                  CUPTI_ACTIVITY_MEMCPY_KIND_DTOD == 8 && CUPTI_ACTIVITY_MEMCPY_KIND_HTOH == 9 &&
                  CUPTI_ACTIVITY_MEMCPY_KIND_PTOP == 10,
              "a kind of copy is not as device/cupti.c has it");
#endif
