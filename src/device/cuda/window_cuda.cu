/* window_cuda.cu -- windows of device memory, by the driver's virtual memory management.
 *
 * Addresses are reserved for the whole window; memory is created and mapped page by page, of 2 MiB
 * on today's cards. A mapping keeps its memory alive, so the handle is given back at once. The
 * plugin does not link the driver's library: its functions come from the runtime. */
#include "device/cuda/native.cuh"
#include "device/device_impl.h"

#include <cuda.h>

/* The version in which all of these had the form they have here. */
enum { SINCE = 12000 };

typedef struct driver {
    decltype(&cuMemGetAllocationGranularity) granularity;
    decltype(&cuMemAddressReserve) reserve;
    decltype(&cuMemAddressFree) give_back;
    decltype(&cuMemCreate) create;
    decltype(&cuMemRelease) release;
    decltype(&cuMemMap) map;
    decltype(&cuMemUnmap) unmap;
    decltype(&cuMemSetAccess) set_access;
} driver;

static bool find(const char *name, void **function)
{
    cudaDriverEntryPointQueryResult result;

    if (cudaGetDriverEntryPointByVersion(name, function, SINCE, cudaEnableDefault, &result) ==
            cudaSuccess &&
        result == cudaDriverEntryPointSuccess && *function)
        return true;
    cudaGetLastError();
    return false;
}

/* NULL: this driver has not all of them. */
static const driver *functions()
{
    static driver d;
    static int known; /* 1: yes, -1: no */

    if (known == 0)
        known = find("cuMemGetAllocationGranularity", (void **)&d.granularity) &&
                        find("cuMemAddressReserve", (void **)&d.reserve) &&
                        find("cuMemAddressFree", (void **)&d.give_back) &&
                        find("cuMemCreate", (void **)&d.create) &&
                        find("cuMemRelease", (void **)&d.release) &&
                        find("cuMemMap", (void **)&d.map) &&
                        find("cuMemUnmap", (void **)&d.unmap) &&
                        find("cuMemSetAccess", (void **)&d.set_access)
                    ? 1
                    : -1;
    return known > 0 ? &d : NULL;
}

static CUmemAllocationProp on_card(const ls_cuda_device *d)
{
    CUmemAllocationProp p = {};

    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = d->ordinal;
    return p;
}

int64_t ls_cuda_window_page(const ls_device *device)
{
    ls_cuda_device *d = (ls_cuda_device *)device->native;
    CUmemAllocationProp p = on_card(d);
    const driver *f = functions();
    size_t bytes = 0;

    if (d->window_page == 0 && f &&
        f->granularity(&bytes, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS)
        d->window_page = (int64_t)bytes;
    return d->window_page;
}

void *ls_cuda_window_open(ls_device *, int64_t bytes)
{
    CUdeviceptr at = 0;

    return functions()->reserve(&at, (size_t)bytes, 0, 0, 0) == CUDA_SUCCESS ? (void *)at : NULL;
}

bool ls_cuda_window_back(ls_device *device, void *at, int64_t bytes)
{
    const ls_cuda_device *d = (const ls_cuda_device *)device->native;
    CUmemAllocationProp p = on_card(d);
    CUmemAccessDesc access = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    const driver *f = functions();

    if (f->create(&handle, (size_t)bytes, &p, 0) != CUDA_SUCCESS)
        return false;
    bool mapped = f->map((CUdeviceptr)at, (size_t)bytes, 0, handle, 0) == CUDA_SUCCESS;
    f->release(handle);
    if (!mapped)
        return false;
    if (f->set_access((CUdeviceptr)at, (size_t)bytes, &access, 1) == CUDA_SUCCESS &&
        cudaMemset(at, 0, (size_t)bytes) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess)
        return true;
    cudaGetLastError();
    f->unmap((CUdeviceptr)at, (size_t)bytes);
    return false;
}

/* Two pieces of memory that are a period together, mapped again and again. A mapping takes all of
 * its memory, so the first is as long as what the last turn has left. */
typedef struct turn_pieces {
    CUmemGenericAllocationHandle handle[2];
    int64_t bytes[2]; /* of the second maybe all */
} turn_pieces;

static bool create_pieces(const driver *f, const CUmemAllocationProp *p, turn_pieces *t)
{
    for (int i = 0; i < 2; i++) {
        if (t->bytes[i] == 0 || f->create(&t->handle[i], (size_t)t->bytes[i], p, 0) == CUDA_SUCCESS)
            continue;
        if (i > 0 && t->bytes[0] > 0)
            f->release(t->handle[0]);
        return false;
    }
    return true;
}

/* Piece i of the period, where it lies. */
static bool map_piece(const driver *f, const CUmemAccessDesc *access, const turn_pieces *t, int i,
                      CUdeviceptr at)
{
    size_t n = (size_t)t->bytes[i];

    if (n == 0)
        return true;
    if (f->map(at, n, 0, t->handle[i], 0) != CUDA_SUCCESS)
        return false;
    if (f->set_access(at, n, access, 1) == CUDA_SUCCESS)
        return true;
    f->unmap(at, n);
    return false;
}

/* A write through one address is seen through another by what is queued behind it, which is all
 * that is asked of it. */
bool ls_cuda_window_turn(ls_device *device, void *at, int64_t bytes, int64_t period)
{
    const ls_cuda_device *d = (const ls_cuda_device *)device->native;
    CUmemAllocationProp p = on_card(d);
    CUmemAccessDesc access = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    turn_pieces t = {{0, 0}, {bytes % period, period - bytes % period}};
    const driver *f = functions();
    int64_t done = 0;
    int i = 0;

    if (!create_pieces(f, &p, &t))
        return false;
    for (; done < bytes && map_piece(f, &access, &t, i, (CUdeviceptr)at + done); i = 1 - i)
        done += t.bytes[i];
    for (int k = 0; k < 2; k++)
        if (t.bytes[k] > 0)
            f->release(t.handle[k]);
    if (done == bytes && cudaMemset(at, 0, (size_t)period) == cudaSuccess &&
        cudaDeviceSynchronize() == cudaSuccess)
        return true;
    cudaGetLastError();
    if (done > 0)
        f->unmap((CUdeviceptr)at, (size_t)done);
    return false;
}

/* Nothing that is queued may read it any more. */
void ls_cuda_window_drop(ls_device *, void *at, int64_t bytes)
{
    cudaDeviceSynchronize();
    functions()->unmap((CUdeviceptr)at, (size_t)bytes);
}

void ls_cuda_window_close(ls_device *, void *base, int64_t bytes)
{
    functions()->give_back((CUdeviceptr)base, (size_t)bytes);
}
