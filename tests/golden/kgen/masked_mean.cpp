// sum_dfdc75ec57b9: b * 40 elements, grid 1
// size0: int64 s
// size1: int64 s * 40
// size2: int64 b
// size3: int64 b * s * 40
[[gnu::noinline]] static void sum_dfdc75ec57b9_part(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const int64_t* __restrict__ in0 = static_cast<const int64_t*>(buffers[0]);
    const float* __restrict__ in1 = static_cast<const float*>(buffers[1]);
    float* __restrict__ out0 = static_cast<float*>(buffers[2]);
    const int64_t size0 = parameters[0];
    const int64_t size1 = parameters[1];
    const int64_t size2 = parameters[2];
    const int64_t size3 = parameters[3];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    #pragma omp for schedule(static) nowait
    for (int64_t i0 = 0; i0 < size2; ++i0) {
        const int64_t p0 = size0 * i0;
        const int64_t p4 = size1 * i0;
        double sum0[40];
        for (int64_t lane = 0; lane < 40; ++lane) sum0[lane] = 0.0;
        for (int64_t start = 0; start < size0; start += 64) {
            const int64_t stop = start + 64 < size0 ? start + 64 : size0;
            float part_of_sum0[40];
            for (int64_t lane = 0; lane < 40; ++lane) part_of_sum0[lane] = 0.0f;
            int64_t few0 = start;
            for (; few0 + 4 <= stop; few0 += 4)
            #pragma omp simd
            for (int64_t i1 = 0; i1 < 40; ++i1) {
                float few_of_sum0 = 0.0f;
                #pragma GCC unroll 4
                for (int64_t r2 = few0; r2 < few0 + 4; ++r2) {
                    const int64_t p1 = p0 + r2;
                    const int64_t p2 = in0[p1];
                    const float v0 = (float)p2;
                    const int64_t p3 = r2 * 40;
                    const int64_t p5 = p3 + p4;
                    const float v1 = in1[p5 + i1];
                    few_of_sum0 = few_of_sum0 + v0 * v1;
                }
                part_of_sum0[i1] = part_of_sum0[i1] + few_of_sum0;
            }
            for (int64_t r2 = few0; r2 < stop; ++r2) {
                const int64_t p1 = p0 + r2;
                const int64_t p2 = in0[p1];
                const float v0 = (float)p2;
                const int64_t p3 = r2 * 40;
                const int64_t p5 = p3 + p4;
                #pragma omp simd
                for (int64_t i1 = 0; i1 < 40; ++i1) {
                    const float v1 = in1[p5 + i1];
                    part_of_sum0[i1] = part_of_sum0[i1] + v0 * v1;
                }
            }
            for (int64_t lane = 0; lane < 40; ++lane) sum0[lane] += part_of_sum0[lane];
        }
        const int64_t p6 = i0 * 40;
        #pragma omp simd
        for (int64_t i1 = 0; i1 < 40; ++i1) {
            out0[p6 + i1] = (float)sum0[i1];
        }
    }
}
extern "C" void sum_dfdc75ec57b9(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    if (parameters[3] < 16384) threads = 1;
    if (threads == 1) return sum_dfdc75ec57b9_part(buffers, parameters, status, threads);
    #pragma omp parallel num_threads(threads)
    sum_dfdc75ec57b9_part(buffers, parameters, status, threads);
}

// div_d4d54fa4e181: b * 40 elements, grid 1
// size0: int64 s
// size1: int64 b
// size2: int64 b * 80
[[gnu::noinline]] static void div_d4d54fa4e181_part(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const int64_t* __restrict__ in0 = static_cast<const int64_t*>(buffers[0]);
    const float* __restrict__ in1 = static_cast<const float*>(buffers[1]);
    float* __restrict__ out0 = static_cast<float*>(buffers[2]);
    const int64_t size0 = parameters[0];
    const int64_t size1 = parameters[1];
    const int64_t size2 = parameters[2];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    #pragma omp for schedule(static) nowait
    for (int64_t i0 = 0; i0 < size1; ++i0) {
        const int64_t p0 = size0 * i0;
        double sum0 = 0.0;
        int64_t strip0 = 0;
        while (strip0 + 32 <= size0) {
            const int64_t strip0_end = strip0 + 512 < size0 ? strip0 + 512 : size0;
            float sum0_lanes[32];
            for (int64_t lane = 0; lane < 32; ++lane) sum0_lanes[lane] = 0.0f;
            for (; strip0 + 32 <= strip0_end; strip0 += 32)
            #pragma omp simd
            for (int64_t r2 = strip0; r2 < strip0 + 32; ++r2) {
                const int64_t p1 = in0[p0 + r2];
                sum0_lanes[r2 - strip0] = sum0_lanes[r2 - strip0] + (float)p1;
            }
            sum0 += join_lanes<32>(sum0_lanes, Add());
        }
        if (strip0 < size0) {
            float rest_of_sum0 = 0.0f;
            #pragma omp simd reduction(+:rest_of_sum0)
            for (int64_t r2 = strip0; r2 < size0; ++r2) {
                const int64_t p1 = in0[p0 + r2];
                rest_of_sum0 = rest_of_sum0 + (float)p1;
            }
            sum0 += rest_of_sum0;
        }
        const int64_t p2 = i0 * 40;
        const float v1 = max_of(1e-09f, (float)sum0);
        float* const row0 = scratch<float, 0>(40);
        double sum1 = 0.0;
        for (int64_t start = 0; start < 40; start += 1024) {
            const int64_t stop = start + 1024 < 40 ? start + 1024 : 40;
            alignas(64) float terms_of_sum1[1024];
            #pragma omp simd
            for (int64_t i1 = start; i1 < stop; ++i1) {
                const float v0 = in1[p2 + i1];
                const float v2 = v0 / v1;
                row0[i1] = v2;
                terms_of_sum1[i1 - start] = v2 * v2;
            }
            sum1 += sum_of(terms_of_sum1, stop - start);
        }
        const float v3 = sqrtf((float)sum1);
        const float v4 = max_of(1e-12f, v3);
        #pragma omp simd
        for (int64_t i1 = 0; i1 < 40; ++i1) {
            out0[p2 + i1] = row0[i1] / v4;
        }
    }
}
extern "C" void div_d4d54fa4e181(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    if (parameters[2] < 16384) threads = 1;
    if (threads == 1) return div_d4d54fa4e181_part(buffers, parameters, status, threads);
    #pragma omp parallel num_threads(threads)
    div_d4d54fa4e181_part(buffers, parameters, status, threads);
}
