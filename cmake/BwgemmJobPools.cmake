# How many compilers run at a time: as many as there are processors. Ninja alone starts two more, which take turns on them and
# lose what they have in the caches.
#
# Pools: `compilers`, of all targets that name no other, and `large`, of units whose compiler takes gigabytes: as many as memory
# has room for. Where that is no limit, they are one pool.
cmake_host_system_information(RESULT bwgemm_processors QUERY NUMBER_OF_LOGICAL_CORES)
cmake_host_system_information(RESULT memory_mb QUERY TOTAL_PHYSICAL_MEMORY)
set(bwgemm_large_unit_mb 10000) # what the compiler of one takes at most

set(bwgemm_jobs ${bwgemm_processors})
if(BWGEMM_COMPILE_JOBS GREATER 0)
  set(bwgemm_jobs ${BWGEMM_COMPILE_JOBS})
endif()
math(EXPR large_jobs "${memory_mb} / ${bwgemm_large_unit_mb}")
if(large_jobs LESS 1)
  set(large_jobs 1)
endif()

set(CMAKE_JOB_POOL_COMPILE compilers)
set(bwgemm_large_pool large)
if(large_jobs GREATER_EQUAL bwgemm_jobs)
  set(bwgemm_large_pool compilers)
endif()
set_property(GLOBAL PROPERTY JOB_POOLS compilers=${bwgemm_jobs} large=${large_jobs})
