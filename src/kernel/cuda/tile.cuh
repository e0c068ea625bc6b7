/* tile.cuh -- one tile of a product, 128 x 128, by a block of 256 threads: sum over k of a(i, k)
 * b(j, k), for operands that lie either way in memory, summed in fp32 in an order that depends on
 * the number of k only.
 *
 * 16 bits: tensor cores. Both operands come in stages of 64 k through shared memory by cp.async, in
 * the layout that Hopper's instructions read (128 bytes swizzled by 16 in groups of 8 lines, which
 * ldmatrix reads without conflicts, too):
 *
 *   a line along k     line i: 64 k of row i; 16 bytes c lie at c ^ (i % 8)
 *   a line along rows  line k of half h: rows 64 h .. 64 h + 63 of k; 16 bytes c at c ^ (k % 8)
 *
 * With sm_90a two warpgroups have 64 rows each (wgmma, operands out of shared memory); elsewhere
 * eight warps have 64 x 32 each (mma.sync). Two blocks share a multiprocessor, so that one computes
 * while the other waits or writes. fp32: plain fma, 8 x 8 for each thread.
 *
 * What lies outside of an operand counts as 0. WIDE: rows, strides and pointers allow accesses of
 * 16 bytes; without it elements are read one by one, for odd shapes. */
#pragma once
#include "kernel/cuda/common.cuh"

enum {
    LS_TILE = 128,
    LS_TILE_THREADS = 256,
    LS_TILE_SUMS = LS_TILE * LS_TILE / LS_TILE_THREADS, /* of a thread */
    LS_TILE_DEPTH = 64,                                 /* k of a stage */
    LS_TILE_STAGES = 3,
    LS_TILE_OPERAND = LS_TILE * LS_TILE_DEPTH * 2,                /* bytes */
    LS_TILE_HALF = LS_TILE_OPERAND / 2,                           /* 64 rows, either way */
    LS_TILE_SHARED = LS_TILE_STAGES * 2 * LS_TILE_OPERAND + 1024, /* and room to align */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LS_TILE_WGMMA 1
#else
#define LS_TILE_WGMMA 0
#endif

/* Element (row, k) is at p[row * ld + k], or p[k * ld + row] where the operand is turned. */
template <typename T> struct ls_operand {
    const T *p;
    int64_t ld;
    int rows;
};

__device__ inline uint32_t ls_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* The shared memory of a kernel, aligned as tiles want it. */
__device__ inline char *ls_tile_shared(char *raw)
{
    return raw + (1024 - ls_shared_address(raw) % 1024) % 1024;
}

/* --- 16 bits ---------------------------------------------------------------------------------- */

template <typename T, bool WIDE> struct ls_tile_half {
    typedef T type;
    enum { SHARED = LS_TILE_SHARED };

    /* 16 bytes into shared memory; `valid` elements of them are there. */
    static __device__ void take(char *to, const T *from, int valid)
    {
        if constexpr (WIDE) {
            asm volatile(
                "cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(ls_shared_address(to)),
                "l"(from), "r"(valid > 0 ? 16 : 0)
                : "memory");
        } else {
            union {
                T x[8];
                uint4 bits;
            } u;
            u.bits = make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i < valid)
                    u.x[i] = from[i];
            *reinterpret_cast<uint4 *>(to) = u.bits;
        }
    }

    /* One operand of a stage: k0 .. k0 + 63. */
    template <bool TURNED>
    static __device__ void load(const ls_operand<T> &x, int k0, int depth, char *to)
    {
#pragma unroll
        for (int i = 0; i < LS_TILE * LS_TILE_DEPTH / 8 / LS_TILE_THREADS; i++) {
            int at = (int)threadIdx.x + i * LS_TILE_THREADS;
            if constexpr (TURNED) {
                int k = at / 16, c = at % 16, valid = k0 + k < depth ? x.rows - c * 8 : 0;
                take(to + c / 8 * LS_TILE_HALF + k * 128 + ((c % 8 ^ k % 8) << 4),
                     valid > 0 ? x.p + (k0 + k) * x.ld + c * 8 : x.p, valid);
            } else {
                int row = at / 8, c = at % 8, valid = row < x.rows ? depth - k0 - c * 8 : 0;
                take(to + row * 128 + ((c ^ row % 8) << 4),
                     valid > 0 ? x.p + row * x.ld + k0 + c * 8 : x.p, valid);
            }
        }
    }

#if LS_TILE_WGMMA
    /* Where wgmma finds an operand: address, from 64 rows to the next, from 8 lines to the next. */
    static __device__ uint64_t describe(const char *p)
    {
        return (uint64_t)(ls_shared_address(p) >> 4 & 0x3fff) |
               (uint64_t)(LS_TILE_HALF >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
               (uint64_t)1 << 62;
    }

#define LS_SUMS_8(i)                                                                      \
    "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]), \
        "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define LS_WGMMA(name)                                                                      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, "                                   \
                 "0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." name "." name           \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "   \
                 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "   \
                 "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "   \
                 "%58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, %67, %68;\n}\n"         \
                 : LS_SUMS_8(0), LS_SUMS_8(8), LS_SUMS_8(16), LS_SUMS_8(24), LS_SUMS_8(32), \
                   LS_SUMS_8(40), LS_SUMS_8(48), LS_SUMS_8(56)                              \
                 : "l"(a), "l"(b), "r"(1), "n"(A_TURNED ? 1 : 0), "n"(B_TURNED ? 1 : 0))

    template <bool A_TURNED, bool B_TURNED>
    static __device__ void multiply(float (&sum)[LS_TILE_SUMS], uint64_t a, uint64_t b)
    {
        if constexpr (std::is_same<T, ls_bf16>::value)
            LS_WGMMA("bf16");
        else
            LS_WGMMA("f16");
    }

    template <bool A_TURNED, bool B_TURNED>
    static __device__ void stage(float (&sum)[LS_TILE_SUMS], const char *a, const char *b)
    {
        a += threadIdx.x / 128 * LS_TILE_HALF;
        asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
        for (int k = 0; k < LS_TILE_DEPTH / 16; k++)
            multiply<A_TURNED, B_TURNED>(sum, describe(a + k * (A_TURNED ? 2048 : 32)),
                                         describe(b + k * (B_TURNED ? 2048 : 32)));
        asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
    }

    /* f(row, column, two sums side by side) for all that this thread has. */
    template <typename F> static __device__ void each(float (&sum)[LS_TILE_SUMS], F f)
    {
        int row = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
        int column = (int)threadIdx.x % 4 * 2;

#pragma unroll
        for (int i = 0; i < LS_TILE_SUMS; i += 2)
            f(row + i / 2 % 2 * 8, column + i / 4 * 8, sum[i], sum[i + 1]);
    }
#else
    template <bool TURNED>
    static __device__ void fragments(const char *p, int line, int c, uint32_t (&r)[4])
    {
        uint32_t at;

        if constexpr (TURNED) { /* line: k; c: 16 bytes of rows */
            at = ls_shared_address(p + c / 8 * LS_TILE_HALF + line * 128 +
                                   ((c % 8 ^ line % 8) << 4));
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                         : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                         : "r"(at)
                         : "memory");
        } else { /* line: row; c: 16 bytes of k */
            at = ls_shared_address(p + line * 128 + ((c ^ line % 8) << 4));
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                         : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                         : "r"(at)
                         : "memory");
        }
    }

#define LS_MMA(name)                                                                 \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "      \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n" \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

    static __device__ void multiply(float *sum, const uint32_t (&a)[4], const uint32_t *b)
    {
        if constexpr (std::is_same<T, ls_bf16>::value)
            LS_MMA("bf16");
        else
            LS_MMA("f16");
    }

    template <bool A_TURNED, bool B_TURNED>
    static __device__ void stage(float (&sum)[LS_TILE_SUMS], const char *a, const char *b)
    {
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, low = lane % 8;
        int row = warp / 4 * 64, column = warp % 4 * 32, mid = lane / 8 % 2, high = lane / 16;

#pragma unroll
        for (int k = 0; k < LS_TILE_DEPTH; k += 16) {
            uint32_t of_b[2][4];
#pragma unroll
            for (int j = 0; j < 2; j++)
                if constexpr (B_TURNED)
                    fragments<true>(b, k + low + mid * 8, column / 8 + j * 2 + high, of_b[j]);
                else
                    fragments<false>(b, column + j * 16 + low + high * 8, k / 8 + mid, of_b[j]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t of_a[4];
                if constexpr (A_TURNED)
                    fragments<true>(a, k + low + high * 8, row / 8 + i * 2 + mid, of_a);
                else
                    fragments<false>(a, row + i * 16 + low + mid * 8, k / 8 + high, of_a);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    multiply(&sum[(i * 4 + j) * 4], of_a, &of_b[j / 2][j % 2 * 2]);
            }
        }
    }

    template <typename F> static __device__ void each(float (&sum)[LS_TILE_SUMS], F f)
    {
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        int row = warp / 4 * 64 + lane / 4, column = warp % 4 * 32 + lane % 4 * 2;

#pragma unroll
        for (int i = 0; i < LS_TILE_SUMS; i += 2)
            f(row + i / 16 * 16 + i / 2 % 2 * 8, column + i / 4 % 4 * 8, sum[i], sum[i + 1]);
    }
#endif

    template <bool A_TURNED, bool B_TURNED>
    static __device__ void load_both(const ls_operand<T> &a, const ls_operand<T> &b, int number,
                                     int stages, int depth, char *shared)
    {
        char *to = shared + number % LS_TILE_STAGES * 2 * LS_TILE_OPERAND;

        if (number < stages) {
            load<A_TURNED>(a, number * LS_TILE_DEPTH, depth, to);
            load<B_TURNED>(b, number * LS_TILE_DEPTH, depth, to + LS_TILE_OPERAND);
        }
        asm volatile("cp.async.commit_group;\n" ::: "memory"); /* empty ones keep the count */
    }

    /* sum = the tile's product over `depth` k. */
    template <bool A_TURNED, bool B_TURNED>
    static __device__ void run(float (&sum)[LS_TILE_SUMS], const ls_operand<T> &a,
                               const ls_operand<T> &b, int depth, char *shared)
    {
        int stages = (depth + LS_TILE_DEPTH - 1) / LS_TILE_DEPTH;

#pragma unroll
        for (int i = 0; i < LS_TILE_SUMS; i++)
            sum[i] = 0;
        __syncthreads(); /* the tile before this one has been read */
        for (int i = 0; i < LS_TILE_STAGES - 1; i++)
            load_both<A_TURNED, B_TURNED>(a, b, i, stages, depth, shared);
        for (int i = 0; i < stages; i++) {
            const char *at = shared + i % LS_TILE_STAGES * 2 * LS_TILE_OPERAND;
            asm volatile("cp.async.wait_group %0;\n" ::"n"(LS_TILE_STAGES - 2) : "memory");
#if LS_TILE_WGMMA
            asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
            __syncthreads(); /* stage i is there, and i - 1 has been read by all */
            load_both<A_TURNED, B_TURNED>(a, b, i + LS_TILE_STAGES - 1, stages, depth, shared);
            stage<A_TURNED, B_TURNED>(sum, at, at + LS_TILE_OPERAND);
        }
        asm volatile("cp.async.wait_group 0;\n" ::: "memory");
    }
};

/* --- fp32 ------------------------------------------------------------------------------------- */

struct ls_tile_float {
    typedef float type;
    enum { DEPTH = 16, PITCH = LS_TILE + 4, SHARED = 2 * DEPTH * PITCH * 4 + 1024 };

    template <bool TURNED>
    static __device__ void load(const ls_operand<float> &x, int k0, int depth, float *to)
    {
#pragma unroll
        for (int i = 0; i < LS_TILE * DEPTH / LS_TILE_THREADS; i++) {
            int at = (int)threadIdx.x + i * LS_TILE_THREADS;
            int row = TURNED ? at % LS_TILE : at / DEPTH, k = TURNED ? at / LS_TILE : at % DEPTH;
            bool there = row < x.rows && k0 + k < depth;
            int64_t from = TURNED ? (k0 + k) * x.ld + row : row * x.ld + k0 + k;
            to[k * PITCH + row] = there ? x.p[from] : 0.0f;
        }
    }

    template <bool A_TURNED, bool B_TURNED>
    static __device__ void run(float (&sum)[LS_TILE_SUMS], const ls_operand<float> &a,
                               const ls_operand<float> &b, int depth, char *shared)
    {
        float *as = reinterpret_cast<float *>(shared), *bs = as + DEPTH * PITCH;
        int row = (int)threadIdx.x / 16 * 8, column = (int)threadIdx.x % 16 * 8;

#pragma unroll
        for (int i = 0; i < LS_TILE_SUMS; i++)
            sum[i] = 0;
        for (int k0 = 0; k0 < depth; k0 += DEPTH) {
            __syncthreads();
            load<A_TURNED>(a, k0, depth, as);
            load<B_TURNED>(b, k0, depth, bs);
            __syncthreads();
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
                float x[8], y[8];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    x[i] = as[k * PITCH + row + i];
                    y[i] = bs[k * PITCH + column + i];
                }
#pragma unroll
                for (int i = 0; i < LS_TILE_SUMS; i++)
                    sum[i] = fmaf(x[i / 8], y[i % 8], sum[i]);
            }
        }
    }

    template <typename F> static __device__ void each(float (&sum)[LS_TILE_SUMS], F f)
    {
        int row = (int)threadIdx.x / 16 * 8, column = (int)threadIdx.x % 16 * 8;

#pragma unroll
        for (int i = 0; i < LS_TILE_SUMS; i += 2)
            f(row + i / 8, column + i % 8, sum[i], sum[i + 1]);
    }
};
