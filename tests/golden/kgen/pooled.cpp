// max_pool_b94ae2377553: (h + 1) // 2 * (c * n) * ((w + 1) // 2) elements, grid 1
// size0: int64 h
// size1: int64 w
// size2: int64 w * 2
// size3: int64 h * w
// size4: int64 (h + 1) // 2 * ((w + 1) // 2)
// size5: int64 (w + 1) // 2
// size6: int64 c * n
// size7: int64 (h + 1) // 2
// size8: int64 (h + 1) // 2 * (c * n)
// size9: int64 (h + 1) // 2 * (c * n) * ((w + 1) // 2) * 4
[[gnu::noinline]] static void max_pool_b94ae2377553_part(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const float* __restrict__ in0 = static_cast<const float*>(buffers[0]);
    float* __restrict__ out0 = static_cast<float*>(buffers[1]);
    const int64_t size0 = parameters[0];
    const int64_t size1 = parameters[1];
    const int64_t size2 = parameters[2];
    const int64_t size3 = parameters[3];
    const int64_t size4 = parameters[4];
    const int64_t size5 = parameters[5];
    const int64_t size6 = parameters[6];
    const int64_t size7 = parameters[7];
    const int64_t size8 = parameters[8];
    const int64_t size9 = parameters[9];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    const int64_t length = share(size5, threads, size8, 1024);
    #pragma omp for collapse(3) schedule(static) nowait
    for (int64_t i0_1 = 0; i0_1 < size6; ++i0_1)
    for (int64_t i2 = 0; i2 < size7; ++i2)
    for (int64_t begin = 0; begin < size5; begin += length) {
        const int64_t end = begin + length < size5 ? begin + length : size5;
        const int64_t p0 = i2 * 2;
        const int64_t p3 = size2 * i2;
        const int64_t p4 = size3 * i0_1;
        const int64_t p5 = p3 + p4;
        float fold0[1024];
        for (int64_t lane = 0; lane < end - begin; ++lane) fold0[lane] = -INF_F;
        for (int64_t r4 = 0; r4 < 2; ++r4) {
            const int64_t p1 = p0 + r4;
            const bool v0 = p1 < size0;
            const int64_t p6 = size1 * r4;
            const int64_t p7 = p5 + p6;
            for (int64_t r5 = 0; r5 < 2; ++r5) {
                const int64_t p8 = p7 + r5;
                #pragma omp simd
                for (int64_t i3 = begin; i3 < end; ++i3) {
                    const int64_t p2 = i3 * 2;
                    const bool v1 = v0 & p2 + r5 < size1;
                    const float v2 = v1 ? in0[p2 + p8] : 0.0f;
                    fold0[i3 - begin] = max_of(fold0[i3 - begin], v1 ? v2 : -INF_F);
                }
            }
        }
        const int64_t p9 = size4 * i0_1;
        const int64_t p10 = size5 * i2;
        const int64_t p11 = p9 + p10;
        #pragma omp simd
        for (int64_t i3 = begin; i3 < end; ++i3) {
            out0[p11 + i3] = fold0[i3 - begin];
        }
    }
}
extern "C" void max_pool_b94ae2377553(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    if (parameters[9] < 16384) threads = 1;
    if (threads == 1) return max_pool_b94ae2377553_part(buffers, parameters, status, threads);
    #pragma omp parallel num_threads(threads)
    max_pool_b94ae2377553_part(buffers, parameters, status, threads);
}
