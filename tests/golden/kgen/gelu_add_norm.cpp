// add_8d45322db6d5: b * s * 768 elements, grid 1
// size0: int64 b * s
// size1: int64 b * s * 1536
[[gnu::noinline]] static void add_8d45322db6d5_part(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const float* __restrict__ in0 = static_cast<const float*>(buffers[0]);
    const float* __restrict__ in1 = static_cast<const float*>(buffers[1]);
    const float* __restrict__ in2 = static_cast<const float*>(buffers[2]);
    const float* __restrict__ in3 = static_cast<const float*>(buffers[3]);
    float* __restrict__ out0 = static_cast<float*>(buffers[4]);
    const int64_t size0 = parameters[0];
    const int64_t size1 = parameters[1];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    #pragma omp for schedule(static) nowait
    for (int64_t i0_1 = 0; i0_1 < size0; ++i0_1) {
        const int64_t p0 = i0_1 * 768;
        float* const row0 = scratch<float, 0>(768);
        double sum0 = 0.0;
        for (int64_t start = 0; start < 768; start += 1024) {
            const int64_t stop = start + 1024 < 768 ? start + 1024 : 768;
            alignas(64) float terms_of_sum0[1024];
            #pragma omp simd
            for (int64_t i2 = start; i2 < stop; ++i2) {
                const int64_t p1 = p0 + i2;
                const float v0 = in0[p1];
                const float v1 = in1[p1];
                const float v2 = (erf_of(v0 * 0.70710677f) + 1.0f) * (v0 * 0.5f) + v1;
                row0[i2] = v2;
                terms_of_sum0[i2 - start] = v2;
            }
            sum0 += sum_of(terms_of_sum0, stop - start);
        }
        const float v3 = (float)sum0 / 768.0f;
        double sum1 = 0.0;
        for (int64_t start = 0; start < 768; start += 1024) {
            const int64_t stop = start + 1024 < 768 ? start + 1024 : 768;
            alignas(64) float terms_of_sum1[1024];
            #pragma omp simd
            for (int64_t i2 = start; i2 < stop; ++i2) {
                const float v4 = row0[i2] - v3;
                terms_of_sum1[i2 - start] = v4 * v4;
            }
            sum1 += sum_of(terms_of_sum1, stop - start);
        }
        const float v7 = (float)sum1 / 768.0f;
        const float v8 = v7 + 1e-05f;
        const float v9 = reciprocal_sqrt(v8);
        #pragma omp simd
        for (int64_t i2 = 0; i2 < 768; ++i2) {
            const float v5 = in2[i2];
            const float v6 = row0[i2] - v3;
            const float v10 = in3[i2];
            const int64_t p2 = p0 + i2;
            out0[p2] = v5 * (v6 * v9) + v10;
        }
    }
}
extern "C" void add_8d45322db6d5(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    if (parameters[1] < 4096) threads = 1;
    if (threads == 1) return add_8d45322db6d5_part(buffers, parameters, status, threads);
    #pragma omp parallel num_threads(threads)
    add_8d45322db6d5_part(buffers, parameters, status, threads);
}
