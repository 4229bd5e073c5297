// k0_embedding: s * 96 elements, grid 1
// size_s: int64 s
// size0: int64 s * 96
// checks positions in 0 .. 32
extern "C" void k0_embedding(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const float* __restrict__ places = static_cast<const float*>(buffers[0]);
    const int64_t* __restrict__ positions = static_cast<const int64_t*>(buffers[1]);
    float* __restrict__ embedding_1 = static_cast<float*>(buffers[2]);
    const int64_t size_s = parameters[0];
    const int64_t size0 = parameters[1];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    if (size0 < 32768) threads = 1;
    #pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t i1 = 0; i1 < size_s; ++i1) {
        const int64_t p0 = positions[i1];
        if (!(0 <= p0 && p0 < 32)) report(status, 1, i1, p0);
        const int64_t p1 = p0 * 96;
        const bool v0 = 0 <= p0;
        const bool v1 = p0 <= 31;
        const bool v2 = v0 & v1;
        const int64_t p2 = i1 * 96;
        #pragma omp simd
        for (int64_t i2 = 0; i2 < 96; ++i2) {
            const float v3 = v2 ? places[p1 + i2] : float{};
            embedding_1[p2 + i2] = v3;
        }
    }
}

// k1_add: b * s * 96 elements, grid 1
// size_s: int64 s
// size0: int64 s * 96
// size_b: int64 b
// size1: int64 b * s * 192
// checks ids in 0 .. 50
extern "C" void k1_add(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const float* __restrict__ words = static_cast<const float*>(buffers[0]);
    const int64_t* __restrict__ ids = static_cast<const int64_t*>(buffers[1]);
    const float* __restrict__ embedding_1 = static_cast<const float*>(buffers[2]);
    const float* __restrict__ w = static_cast<const float*>(buffers[3]);
    const float* __restrict__ c = static_cast<const float*>(buffers[4]);
    float* __restrict__ add_15 = static_cast<float*>(buffers[5]);
    const int64_t size_s = parameters[0];
    const int64_t size0 = parameters[1];
    const int64_t size_b = parameters[2];
    const int64_t size1 = parameters[3];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    if (size1 < 32768) threads = 1;
    #pragma omp parallel for collapse(2) schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t i0 = 0; i0 < size_b; ++i0)
    for (int64_t i1 = 0; i1 < size_s; ++i1) {
        const int64_t p0 = size_s * i0;
        const int64_t p1 = p0 + i1;
        const int64_t p2 = ids[p1];
        if (!(0 <= p2 && p2 < 50)) report(status, 1, p1, p2);
        const int64_t p3 = p2 * 96;
        const bool v0 = 0 <= p2;
        const bool v1 = p2 <= 49;
        const bool v2 = v0 & v1;
        const int64_t p4 = i1 * 96;
        float* const row0 = scratch<float, 0>(96);
        float sum1 = 0.0f;
        #pragma omp simd reduction(+:sum1)
        for (int64_t i2 = 0; i2 < 96; ++i2) {
            const float v3 = v2 ? words[p3 + i2] : float{};
            const float v4 = embedding_1[p4 + i2];
            const float v5 = v3 + v4;
            row0[i2] = v5;
            sum1 = sum1 + v5;
        }
        const float v6 = sum1 / 96.0f;
        float sum0 = 0.0f;
        #pragma omp simd reduction(+:sum0)
        for (int64_t i2 = 0; i2 < 96; ++i2) {
            const float v7 = row0[i2] - v6;
            sum0 = sum0 + v7 * v7;
        }
        const float v9 = sum0 / 96.0f;
        const float v10 = v9 + 1e-12f;
        const float v11 = reciprocal_sqrt(v10);
        const int64_t p5 = size0 * i0;
        const int64_t p6 = p4 + p5;
        #pragma omp simd
        for (int64_t i2 = 0; i2 < 96; ++i2) {
            const float v8 = c[i2];
            const float v12 = row0[i2] - v6;
            const float v13 = w[i2];
            add_15[p6 + i2] = v8 + v11 * v12 * v13;
        }
    }
}
