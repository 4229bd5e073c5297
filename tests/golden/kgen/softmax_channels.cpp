// div_2db7f54ae199: n * 2 * (h * w) elements, grid 1
// size0: int64 h * w * 2
// size1: int64 h * w
// size2: int64 n
// size3: int64 n * 2
// size4: int64 h * n * w * 4
[[gnu::noinline]] static void div_2db7f54ae199_part(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const float* __restrict__ in0 = static_cast<const float*>(buffers[0]);
    float* __restrict__ out0 = static_cast<float*>(buffers[1]);
    const int64_t size0 = parameters[0];
    const int64_t size1 = parameters[1];
    const int64_t size2 = parameters[2];
    const int64_t size3 = parameters[3];
    const int64_t size4 = parameters[4];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    const int64_t length = share(size1, threads, size3, 1024);
    #pragma omp for collapse(3) schedule(static) nowait
    for (int64_t i0 = 0; i0 < size2; ++i0)
    for (int64_t i1 = 0; i1 < 2; ++i1)
    for (int64_t begin = 0; begin < size1; begin += length) {
        const int64_t end = begin + length < size1 ? begin + length : size1;
        const int64_t p0 = size0 * i0;
        float fold0[1024];
        for (int64_t lane = 0; lane < end - begin; ++lane) fold0[lane] = -INF_F;
        for (int64_t i1 = 0; i1 < 2; ++i1) {
            const int64_t p1 = size1 * i1;
            const int64_t p2 = p0 + p1;
            #pragma omp simd
            for (int64_t i2_3 = begin; i2_3 < end; ++i2_3) {
                const float v0 = in0[p2 + i2_3];
                fold0[i2_3 - begin] = max_of(fold0[i2_3 - begin], v0);
            }
        }
        float sum0[1024];
        for (int64_t lane = 0; lane < end - begin; ++lane) sum0[lane] = 0.0f;
        for (int64_t i1 = 0; i1 < 2; ++i1) {
            const int64_t p3 = size1 * i1;
            const int64_t p4 = p0 + p3;
            #pragma omp simd
            for (int64_t i2_3 = begin; i2_3 < end; ++i2_3) {
                const float v1 = in0[p4 + i2_3];
                const float v2 = exp_of(v1 - fold0[i2_3 - begin]);
                sum0[i2_3 - begin] = sum0[i2_3 - begin] + v2;
            }
        }
        const int64_t p5 = size1 * i1;
        const int64_t p6 = p0 + p5;
        #pragma omp simd
        for (int64_t i2_3 = begin; i2_3 < end; ++i2_3) {
            const float v3 = in0[p6 + i2_3];
            const float v4 = exp_of(v3 - fold0[i2_3 - begin]);
            out0[p6 + i2_3] = v4 / sum0[i2_3 - begin];
        }
    }
}
extern "C" void div_2db7f54ae199(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    if (parameters[4] < 4096) threads = 1;
    if (threads == 1) return div_2db7f54ae199_part(buffers, parameters, status, threads);
    #pragma omp parallel num_threads(threads)
    div_2db7f54ae199_part(buffers, parameters, status, threads);
}
