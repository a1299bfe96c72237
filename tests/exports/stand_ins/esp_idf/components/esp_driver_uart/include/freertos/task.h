unsigned uxTaskGetStackHighWaterMark(void *task);
