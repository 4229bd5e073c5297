// relu_6ed652f5e378: h * n * w * 16 elements, grid 1
// size0: int64 w * 16
// size1: int64 h * w * 16
// size2: int64 0 - w * 16 - 16
// size3: int64 h
// size4: int64 w
// size5: int64 n
// size6: int64 h * n * w * 144
[[gnu::noinline]] static void relu_6ed652f5e378_part(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const half_t* __restrict__ in0 = static_cast<const half_t*>(buffers[0]);
    const half_t* __restrict__ in1 = static_cast<const half_t*>(buffers[1]);
    const half_t* __restrict__ in2 = static_cast<const half_t*>(buffers[2]);
    half_t* __restrict__ out0 = static_cast<half_t*>(buffers[3]);
    const int64_t size0 = parameters[0];
    const int64_t size1 = parameters[1];
    const int64_t size2 = parameters[2];
    const int64_t size3 = parameters[3];
    const int64_t size4 = parameters[4];
    const int64_t size5 = parameters[5];
    const int64_t size6 = parameters[6];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    #pragma omp for collapse(3) schedule(static) nowait
    for (int64_t i0 = 0; i0 < size5; ++i0)
    for (int64_t i1 = 0; i1 < size3; ++i1)
    for (int64_t i2 = 0; i2 < size4; ++i2) {
        const int64_t p0 = size0 * i1;
        const int64_t p1 = size1 * i0;
        const int64_t p2 = i2 * 16;
        float run0[16];
        const int64_t p4 = size2 + p1;
        const int64_t p5 = p0 + p4;
        const int64_t p6 = p5 + p2;
        float sum0[16];
        for (int64_t lane = 0; lane < 16; ++lane) sum0[lane] = 0.0f;
        for (int64_t r4 = 0; r4 < 3; ++r4) {
            const int64_t p7 = size0 * r4;
            const int64_t p8 = p6 + p7;
            const int64_t p10 = i1 + r4;
            const bool v0 = 1 <= p10;
            const bool v1 = p10 <= size3;
            const int64_t p12 = r4 * 48;
            for (int64_t r5 = 0; r5 < 3; ++r5) {
                const int64_t p3 = r5 * 16;
                const int64_t p9 = p3 + p8;
                const int64_t p11 = i2 + r5;
                const bool v2 = 1 <= p11;
                const bool v3 = p11 <= size4;
                const bool v4 = v2 & v3;
                const bool v5 = v1 & v4;
                const bool v6 = v0 & v5;
                float run1[16];
                widen(in1 + (p12 + p3), 16, run1);
                #pragma omp simd
                for (int64_t i3 = 0; i3 < 16; ++i3) {
                    const half_t v7 = v6 ? in0[p9 + i3] : half_t{};
                    sum0[i3] = sum0[i3] + float_of(v7) * run1[i3];
                }
            }
        }
        float run2[16];
        widen(in2 + 0, 16, run2);
        #pragma omp simd
        for (int64_t i3 = 0; i3 < 16; ++i3) {
            run0[i3] = max_of(0.0f, run2[i3] + sum0[i3]);
        }
        narrow(run0, 16, out0 + (p0 + p1 + p2));
    }
}
extern "C" void relu_6ed652f5e378(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    if (parameters[6] < 16384) threads = 1;
    if (threads == 1) return relu_6ed652f5e378_part(buffers, parameters, status, threads);
    #pragma omp parallel num_threads(threads)
    relu_6ed652f5e378_part(buffers, parameters, status, threads);
}
